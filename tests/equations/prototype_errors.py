"""The largest errors of compiled attention: ten times those of the prototypes.

Where these had no float32 at 256 tokens, it is the limit of their longest sequence. Lightning there
rounds its decay to float32 when it decodes and not in a whole sequence. Each rounding is up to
2^-25, so over 256 tokens the two modes of one layer differ by up to 7.6e-6: no weights do better.
"""

from itertools import product

PLACES = tuple(product(("float64", "float32"), (32, 256)))
AT_PLACES = {
    "mamba_block": (3.6e-15, 8.1e-15, 2.4e-06, 2.4e-06),
    "falcon_h1": (3.0e-15, 9.2e-15, 2.4e-06, 2.4e-06),
    "mamba2": (4.8e-15, 1.2e-14, 1.4e-06, 1.4e-06),
    "gated_deltanet": (2.4e-15, 9.2e-15, 3.0e-06, 3.0e-06),
    "deltanet": (1.2e-14, 1.2e-14, 2.3e-06, 2.5e-06),
    "kda": (4.8e-15, 1.3e-14, 2.6e-06, 2.6e-06),
    "lightning": (2.4e-15, 1.2e-14, 3.0e-06, 7.6e-06),
    "gla": (2.4e-15, 9.2e-15, 1.3e-06, 1.9e-06),
    "retnet": (1.4e-14, 1.9e-10, 3.3e-06, 8.5e-06),
    "rwkv6": (9.2e-15, 9.2e-15, 1.3e-06, 1.9e-06),
    "rwkv7": (9.2e-15, 9.2e-15, 1.3e-06, 1.4e-06),
    "mlstm": (1.5e-14, 2.0e-14, 6.7e-06, 6.7e-06),
    "jamba": (1.0e-14, 1.0e-14, 2.4e-06, 2.4e-06),
    "rg_lru": (9.0e-13, 8.7e-12, 1.0e-04, 2.3e-04),
    "hgrn2": (5.3e-10, 4.2e-09, 8.5e-03, 5.4e-02),
}
# By target, then by precision and tokens.
LIMITS = {target: dict(zip(PLACES, errors, strict=True)) for target, errors in AT_PLACES.items()}
