"""One BLAS thread for small matrices.

The matrices of an analysis have a few hundred rows. Threads gain nothing on them. Where other
programs keep the cores busy, threads wait for each other, which can cost far more than the work.
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
    """Return the function; BLAS keeps to one thread while it runs."""

    @functools.wraps(function)
    def limited(*arguments: Parameters.args, **options: Parameters.kwargs) -> Returned:
        with controller().limit(limits=1, user_api="blas"):
            return function(*arguments, **options)

    return limited
