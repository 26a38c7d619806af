"""How long `compile` takes, against the size of what it returns.

The minimal form of d×d attention has N = d(d+1)/2 gate outputs, so W_out_m and W_out_x hold about
2N² numbers: the output's size grows as d⁴, and so should the time, once it is not all overhead.
"""

import numpy as np
from _common import seconds, write

import underhood as uh


def attention(d: int) -> uh.LinearAttention:
    rng = np.random.default_rng(d)
    return uh.LinearAttention(*rng.normal(size=(3, d, d)) / np.sqrt(d))


def main() -> None:
    rows = []
    print(f"{'d':>4} {'neurons':>8} {'parameters':>11} {'seconds':>9} {'ns/parameter':>13}")
    for d in (4, 8, 16, 32, 48, 64):
        source = attention(d)
        built = uh.compile(source)
        taken = seconds(lambda source=source: uh.compile(source))
        rows.append(
            {"d": d, "neurons": built.neurons, "parameters": built.parameters, "seconds": taken}
        )
        each = 1e9 * taken / built.parameters
        print(f"{d:>4} {built.neurons:>8} {built.parameters:>11} {taken:>9.4f} {each:>13.1f}")
    large = [row for row in rows if row["d"] >= 16]
    slope = np.polyfit(
        np.log([row["parameters"] for row in large]), np.log([row["seconds"] for row in large]), 1
    )[0]
    print(f"time grows as (parameters)^{slope:.2f} from d = 16 on; 1 means as the output's size")
    write("compile", {"rows": rows, "slope": float(slope)})


if __name__ == "__main__":
    main()
