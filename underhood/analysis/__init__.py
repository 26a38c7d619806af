"""What a network computes: its exact function, its attention, its smaller versions.

forms          a network as an exact polynomial, its size, and the attention nearest to a table
reading        the roles and influence of neurons, probes, and traces; stands on forms
shrinking      prune, merge, polish, reduce; stands on forms and reading
decompilation  the nearest attention with a certificate; stands on forms and reading
scoring        attention_score for any layer; stands on forms

A folder imports only from those it stands on, and from `arguments`, which stands on none.
"""

from underhood.analysis.decompilation.bounding.certificate import Certificate
from underhood.analysis.decompilation.decompiling import Decompilation, decompile
from underhood.analysis.forms.polynomials import MomentForm, Polynomial, moment_form, polynomial
from underhood.analysis.reading.attention_maps import AttentionMap, attention_map
from underhood.analysis.reading.neuron_roles import roles
from underhood.analysis.reading.probes import Probes, probe
from underhood.analysis.reading.tracing import trace
from underhood.analysis.scoring.scores import AttentionScore, attention_score
from underhood.analysis.shrinking.merging import Merged, merge
from underhood.analysis.shrinking.polishing import Polished, polish
from underhood.analysis.shrinking.pruning import Pruned, prune
from underhood.analysis.shrinking.reduction import Reduced, reduce

__all__ = [
    "AttentionMap",
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
    "attention_map",
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
    "trace",
]
