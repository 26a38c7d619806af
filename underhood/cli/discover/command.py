"""underhood discover: train a random student, and find its teacher's attention in it.

    teacher   linear attention with random weights: y_t = W_V (Σ_{s≤t} x_s x_sᵀ) M x_t, where
              M = W_KᵀW_Q; a sum of such heads with --heads
    student   a gated RNN with random weights, which sees inputs and outputs of the teacher only

W_V and M are known up to one factor: s·W_V and M/s give the same function. Several heads are known
up to a mix. The student's are mixed like the teacher's before they are compared.

Exit status 0: the loss reached zero up to rounding, and the student is attention; 1: it did not;
130: Ctrl-C, and the picture shows the best start so far, or the student that was found.
"""

import json
import math
import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from underhood.cli.arguments import Maybe, check_writable
from underhood.cli.commands import complain
from underhood.common.errors import BadInput, check_name, refuse
from underhood.common.numbers import quantity, whole_problems

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import PRNGKeyArray

    from underhood.analysis import Decompilation, Reduced
    from underhood.common.files import Json
    from underhood.layers import GatedRNN
    from underhood.report.discovery import Discovery, Learning
    from underhood.tasks import MultiHeadTeacher, TeacherStudent

PRINTED_OPTIONS = ("d", "rank", "heads", "length", "seed", "method", "neurons")
METHODS = ("second-order", "gradient")
# A teacher has at most so many heads.
MOST_TAUGHT = 4
# Larger sizes take more memory than machines have. Second-order steps are for fewer inputs.
MOST_NEURONS, MOST_D = 1000, {"second-order": 16, "gradient": 64}
# The certificate's bound is printed for tokens up to this norm, and this many.
RADIUS, TOKENS_BOUNDED = 2.0, 100


@dataclass(frozen=True)
class Discover:
    d: int = 4
    """Numbers per token."""
    rank: Maybe[int] = None
    """Rank of the teacher's W_V and M; by default full."""
    heads: int = 1
    """Heads of the teacher; their outputs are added."""
    neurons: int = 20
    """Neurons of the student."""
    length: int = 32
    """Tokens per sequence."""
    seed: int = 0
    """Seed of the teacher, the student and the sequences."""
    method: str = "second-order"
    """second-order (seconds) or gradient (minutes; then polished, which is second-order too)."""
    steps: Maybe[int] = None
    """gradient: number of updates; by default 20000."""
    starts: int = 16
    """second-order: try at most this many random students; the first success ends the search."""
    out: Maybe[Path] = None
    """Where to write the picture: .png, .pdf or .svg, or .html; by default discover.png."""
    html: bool = False
    """Write one page with the picture and what is printed; by default discover.html."""
    force: bool = False
    """Replace the picture if it exists."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        self.check()
        import jax
        import numpy as np

        import underhood as uh
        from underhood.cli.discover.training import advice, train_by_gradient, train_second_order
        from underhood.cli.printing import console
        from underhood.report.discovery import draw_discovery
        from underhood.report.discovery_text import discovery_text

        key, student_key = jax.random.split(jax.random.key(self.seed))
        task = self.task(key)
        if not self.json:
            print(self.setting(), flush=True)
        train = train_by_gradient if self.method == "gradient" else train_second_order
        model, learning = train(self, task, student_key)
        result = reduced = None
        try:
            result = uh.decompile(model)
            # Reducing a student that is not finished can take minutes.
            unfinished = learning.interrupted and not learning.success
            reduced = None if unfinished else uh.reduce(model)
        except KeyboardInterrupt:
            complain("interrupted; the student that was trained is kept. Again to end at once.")
        result = result or uh.decompile(model)
        after = np.asarray(reduced.model.decay if reduced else model.decay)
        discovery = compared(result, task, learning, after, reduced=reduced is not None)
        facts = self.facts(result, reduced, discovery)
        words = discovery_text(facts, discovery)
        asked = f"$ {self.command}\n\n{self.setting()}\n"
        draw_discovery(self.picture, discovery, asked + words.plain)
        if self.json:
            print(json.dumps(facts))
        else:
            console().print(words)
        if reduced is None and (learning.success or not learning.interrupted):
            complain(f"interrupted; {self.picture} shows the student before it is reduced.")
            return 130
        if discovery.became:
            return 0
        if learning.interrupted:
            complain(f"interrupted; {self.picture} shows the best start so far.")
            return 130
        complain(f"the student did not succeed: {learning.summary}; {advice(self, task)}.")
        return 1

    def check(self) -> None:
        """Refuse options that make no sense, before any work is done."""
        from underhood.report.discovery import picture_format

        check_name("method", self.method, METHODS)
        problems = whole_problems(most=MOST_D[self.method], **{"--d": self.d})
        problems += whole_problems(most=MOST_NEURONS, **{"--neurons": self.neurons})
        problems += whole_problems(**{"--length": self.length, "--starts": self.starts})
        problems += whole_problems(most=MOST_TAUGHT, **{"--heads": self.heads})
        problems += whole_problems(least=0, most=2**32 - 1, **{"--seed": self.seed})
        if self.steps is not None:
            problems += whole_problems(**{"--steps": self.steps})
        if self.rank is not None and self.d > 0:
            problems += whole_problems(most=self.d, **{"--rank": self.rank})
        refuse(problems, about="discover")
        if self.steps is not None and self.method != "gradient":
            raise BadInput("--steps is for --method gradient; add that, or leave it out.")
        if picture_format(self.picture) != "html" and self.html:
            raise BadInput(f"--html writes a page; let --out {self.out} end in .html.")
        check_writable(self.picture, replace=self.force)

    def task(self, key: "PRNGKeyArray") -> "TeacherStudent | MultiHeadTeacher":
        from underhood.tasks import MultiHeadTeacher, TeacherStudent

        if self.heads > 1:
            sizes = self.d, self.heads, self.rank
            return MultiHeadTeacher.random(*sizes, length=self.length, key=key)
        return TeacherStudent.random(self.d, self.rank, length=self.length, key=key)

    @property
    def picture(self) -> Path:
        return self.out or Path("discover.html" if self.html else "discover.png")

    @property
    def command(self) -> str:
        """The command with the options that were chosen."""
        words = ["underhood", "discover"]
        for option in fields(self):
            value = getattr(self, option.name)
            if value != option.default:
                words += [f"--{option.name}", *([] if value is True else [str(value)])]
        return shlex.join(words)

    def setting(self) -> str:
        """Say what is about to be trained, and whether it has enough neurons."""
        rank = "" if self.rank is None else f", rank {self.rank}"
        rank += f", {self.heads} heads" if self.heads > 1 else ""
        said = (
            f"teacher: linear attention with random weights, d = {self.d}{rank}\n"
            f"student: gated RNN with {quantity(self.neurons, 'neuron')} and random weights; it "
            f"sees inputs and outputs of the teacher, {quantity(self.length, 'token')} long"
        )
        if self.neurons < self.needed:
            said += f"\nnote: attention with d = {self.d}{rank} can need {self.needed} neurons; if "
            said += "the student fails, give it more"
        return said

    @property
    def needed(self) -> int:
        """How many neurons a random teacher can need (docs/minimal.md)."""
        most = self.d * (self.d + 3) // 2
        r = self.d if self.rank is None else self.rank
        # Two random spaces of r dimensions have k in common.
        k = max(2 * r - self.d, 0)
        return min(self.heads * (r * r - k * (k - 1) // 2 + r), most)

    def student(self, width: int, *, key: "PRNGKeyArray") -> "GatedRNN":
        from underhood.layers import GatedRNN

        return GatedRNN.init(d_in=self.d, hidden=width, gated=width, d_out=self.d, key=key)

    def facts(
        self,
        result: "Decompilation",
        reduced: "Reduced[GatedRNN] | None",
        discovery: "Discovery",
    ) -> "Json":
        """Return what was found in plain numbers and words; the same for the same seed.

        reduced  None: Ctrl-C came before
        """
        from underhood.analysis import decompile
        from underhood.common.numbers import finite_or_none

        # The certificate is the reduced network's: a λ between 0 and 1 in a neuron that does
        # nothing makes the horizon take twenty seconds instead of one.
        certified, learning = decompile(reduced.model) if reduced else None, discovery.learning
        promise, bound = "none", math.inf
        if certified is not None:
            bound = certified.certificate.bound(radius=RADIUS, time=TOKENS_BOUNDED)
            promise = certified.promise(RADIUS) if certified.is_attention else "none"
        which = 0 if self.heads == 1 else slice(None)
        pairs = {"teacher": discovery.teacher, "student": discovery.student}
        matrices = {
            name: pair and {"W_V": pair[0][which].tolist(), "M": pair[1][which].tolist()}
            for name, pair in pairs.items()
        }
        return {
            **{name: getattr(self, name) for name in PRINTED_OPTIONS},
            "success": learning.success,
            "training": learning.summary,
            "loss": finite_or_none(learning.loss),
            "verdict": result.verdict,
            "reason": result.reason,
            "reduction": reduced and str(reduced),
            "promise": promise,
            "radius": RADIUS,
            "time": TOKENS_BOUNDED,
            "bound": finite_or_none(bound),
            "heads_found": len(result.heads),
            "neurons_needed": len(discovery.after) if reduced else None,
            **matrices,
            "difference": discovery.difference,
            "picture": str(self.picture),
        }


def compared(
    result: "Decompilation",
    task: "TeacherStudent | MultiHeadTeacher",
    learning: "Learning",
    after: "np.ndarray",
    *,
    reduced: bool,
) -> "Discovery":
    """Put the attention in the student, if it has as many heads, beside the teacher's."""
    import numpy as np

    from underhood.analysis.decompilation.alignment import aligned_heads
    from underhood.report.discovery import Discovery
    from underhood.tasks.multi_head_teacher import values_and_scores

    teacher, difference = values_and_scores(task.attention), None
    student = aligned_heads(result.attention, task.attention)
    if student is not None:
        difference = float(np.max(np.abs(np.subtract(student, teacher))))
    failed = "has not become attention yet" if learning.interrupted else "did not become attention"
    became = learning.success and result.is_attention
    ended = "becomes attention" if became else failed
    title = f"A recurrent network with random weights {ended}"
    rest = learning, after, teacher, student, difference
    return Discovery(title, f"verdict: {result.reason}", *rest, became=became, reduced=reduced)
