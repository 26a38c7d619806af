"""underhood: the attention under the hood of recurrent networks.

`compile` turns linear self-attention into a recurrent network that computes the same function.
`train` finds such networks by gradient descent on `tasks`, and `sweep` many of them. `fit` finds
them in seconds, by second-order steps.
`prune`, `polish`, `reduce`, `polynomial` and `decompile` look inside them, and `attention_score`
looks inside any layer.
`recall` solves associative recall without training.
`save` and `load` keep networks in files. Layers take one sequence; batches are the caller's vmap.
"""

__version__ = "0.1.0"

# A module is imported when one of its names is first used, so `import underhood` takes no time.
# __init__.pyi says the same to type checkers.
_NAMES = {
    "analysis": """AttentionMap AttentionScore Certificate Decompilation Merged MomentForm Polished
        Polynomial Probes Pruned Reduced attention_score decompile merge moment_form polish
        polynomial probe prune reduce roles attention_map trace""",
    "bridges": "from_state_dict from_torch to_state_dict to_torch",
    "common.errors": "BadInput",
    "constructions": """Construction ImpossibleConstruction Role attention_from_linear_rnn
        compile""",
    "constructions.atlas": "AtlasAnswer can",
    "layers": """GRU LRU LSTM Affine DenseGatedRNN GatedRNN Layer LinearAttention LRUInOut
        LRUInOutMLP Mamba MambaBlock MultiHead SideGatedRNN Stack linear_recurrence load save
        stream Mamba2 DeltaNet GatedDeltaNet KDA GLA RetNet Lightning HGRN2 RWKV6 RWKV7 MLSTM
        RGLRU MinGRU JambaBlock""",
    "sweeps": "Study sweep",
    "training": "Adam Cosine Fit Recipe Run Shrinking fit train",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted([*_MODULES, "recall", "tasks"])


def __getattr__(name: str) -> object:
    from importlib import import_module
    from importlib.util import find_spec

    home = f"underhood.{_MODULES.get(name, name)}"
    # A name that is not in the table may be a folder, as `recall` and `tasks` are.
    if name not in _MODULES and (name.startswith("_") or find_spec(home) is None):
        raise AttributeError(f"module 'underhood' has no attribute {name!r}")
    module = import_module(home)
    globals()[name] = getattr(module, name) if name in _MODULES else module
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# `trace` and `attention_score` take torch modules, and analysis must not import bridges.
from underhood.common import foreign as _foreign  # noqa: E402

_foreign.READERS["torch"] = lambda module: __getattr__("from_torch")(module)
_foreign.OBSERVERS["torch"] = lambda module, xs: __getattr__("bridges").own_values(module, xs)
