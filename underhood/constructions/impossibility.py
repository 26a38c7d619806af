"""The refusal: why no network of the asked kind computes what was asked for."""

from underhood.common.errors import BadInput


class ImpossibleConstruction(BadInput):
    """The request cannot be met; `reasons` says why, all of them at once."""

    def __init__(self, request: str, reasons: list[str]):
        self.reasons = tuple(reasons)
        super().__init__(f"{request} is not possible: {' '.join(reasons)}")
