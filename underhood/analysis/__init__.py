"""What was found: roles, pruning, probes, polynomials, reduction, polishing, decompiling.

From the weights up: `quadratic` (a network as one exact quadratic form), `norms` and `projection`
(its size, and its nearest attention), `decompile` and `certificate`; beside them `prune`, `merge`,
`polish` and `reduce`, which make a trained network small, and `score`, which judges any layer.
"""

from underhood.analysis.certificate import Certificate
from underhood.analysis.decompile import Decompilation, decompile
from underhood.analysis.merge import Merged, merge
from underhood.analysis.moments import MomentForm, moment_form
from underhood.analysis.polish import Polished, polish
from underhood.analysis.polynomials import Polynomial, polynomial
from underhood.analysis.probes import Probes, probe
from underhood.analysis.prune import Pruned, prune
from underhood.analysis.reduce import Reduced, reduce
from underhood.analysis.roles import roles
from underhood.analysis.score import AttentionScore, attention_score

__all__ = [
    "AttentionScore",
    "Certificate",
    "Decompilation",
    "Merged",
    "MomentForm",
    "Polished",
    "Polynomial",
    "Probes",
    "Pruned",
    "Reduced",
    "attention_score",
    "decompile",
    "merge",
    "moment_form",
    "polish",
    "polynomial",
    "probe",
    "prune",
    "reduce",
    "roles",
]
