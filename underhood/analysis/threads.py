"""One BLAS thread for small matrices.

The matrices of an analysis have a few hundred rows. Threads gain nothing on them, and on a busy
machine they wait for each other: one and the same polish took 3 s with one thread, 70 s with two.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


@functools.cache
def controller() -> ThreadpoolController:
    return ThreadpoolController()


def one_thread(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """The function, with BLAS kept to one thread while it runs."""

    @functools.wraps(function)
    def limited(*arguments: Parameters.args, **options: Parameters.kwargs) -> Returned:
        with controller().limit(limits=1, user_api="blas"):
            return function(*arguments, **options)

    return limited
