"""How the tests compile: with few of XLA's optimisations, or as users do, and in few contexts.

Most of the time of the tests is compilation, and XLA compiles three to six times as fast with
QUICK_OPTIONS. They change the last bits of results and the speed of programs. So tests of equal
bits, of memory and of cost compile as users do, by the fixture `as_users_compile`. With
UNDERHOOD_TESTS=optimised in the environment all tests do.
"""

import contextlib
import os
import threading
from collections.abc import Iterator

# XLA's older emitters compile a loop's body about four times as fast as its newer ones, and a
# program in one piece takes less time and fewer mappings of memory than in many.
QUICK_OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
# What XLA takes without them.
USERS_OPTIONS = {
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
    "xla_cpu_use_fusion_emitters": True,
    "xla_cpu_parallel_codegen_split_count": 32,
}

# Buffers are planned before machine code is made, so a program takes the same memory with these,
# and compiles in half the time.
QUICK_MACHINE_CODE = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}

# JAX makes an MLIR context for every program and loads all dialects into it: 4 to 11 ms, a third
# of what a small program takes, and half a megabyte that lives as long as the program. A context
# remembers every type and attribute, so after many programs the next one is new.
PROGRAMS_PER_CONTEXT = 500


def set_options() -> None:
    """Let this process and those that it starts compile quickly. Call it before JAX is imported."""
    if os.environ.get("UNDERHOOD_TESTS") == "optimised" or "UNDERHOOD_XLA_FLAGS" in os.environ:
        return
    flags = os.environ["UNDERHOOD_XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "")
    quick = (f"--{name}={str(value).lower()}" for name, value in QUICK_OPTIONS.items())
    os.environ["XLA_FLAGS"] = " ".join((flags, *quick)).strip()


@contextlib.contextmanager
def compiled_for_users(*, machine_code: bool = True) -> Iterator[None]:
    """Compile with XLA's own options, here and in processes that start meanwhile.

    machine_code  False: for tests of memory; LLVM optimises little, so programs may be slow
    """
    import jax
    from jax._src import compiler

    chosen = USERS_OPTIONS if machine_code else USERS_OPTIONS | QUICK_MACHINE_CODE
    before, get_options = os.environ.get("XLA_FLAGS", ""), compiler.get_compile_options

    def options(*arguments, **settings):
        made = get_options(*arguments, **settings)
        made.env_option_overrides = [*made.env_option_overrides, *chosen.items()]
        return made

    # JAX would run programs again that were compiled with other options.
    jax.clear_caches()
    compiler.get_compile_options = options
    os.environ["XLA_FLAGS"] = os.environ.get("UNDERHOOD_XLA_FLAGS", before)
    try:
        yield
    finally:
        os.environ["XLA_FLAGS"], compiler.get_compile_options = before, get_options
        jax.clear_caches()


def share_contexts() -> None:
    """Let programs that one thread compiles share MLIR contexts. Call it after JAX is imported."""
    from jax._src.interpreters import mlir

    make, shared = mlir.make_ir_context, threading.local()

    def context():
        made = getattr(shared, "made", 0)
        if made % PROGRAMS_PER_CONTEXT == 0:
            shared.context = make()
        shared.made = made + 1
        return shared.context

    mlir.make_ir_context = context
