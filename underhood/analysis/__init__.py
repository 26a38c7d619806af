"""What was found: roles, pruning, probes, polynomials, reduction, polishing, decompiling.

From the weights up: `quadratic` (a network as one exact quadratic form), `norms` and `projection`
(its size, and its nearest attention), `decompile` and `certificate`; beside them `prune`, `merge`,
`polish` and `reduce`, which make a trained network small, and `score`, which judges any layer.
"""

from underhood.analysis.decompilation.certificate import Certificate
from underhood.analysis.decompilation.decompiling import Decompilation, decompile
from underhood.analysis.forms.moments import MomentForm, moment_form
from underhood.analysis.forms.polynomials import Polynomial, polynomial
from underhood.analysis.reading.neuron_roles import roles
from underhood.analysis.reading.probes import Probes, probe
from underhood.analysis.scoring.scores import AttentionScore, attention_score
from underhood.analysis.shrinking.merging import Merged, merge
from underhood.analysis.shrinking.polishing import Polished, polish
from underhood.analysis.shrinking.pruning import Pruned, prune
from underhood.analysis.shrinking.reduction import Reduced, reduce

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
