"""How many output tokens a request is to be expected to need: the ninth decile of what the tenant's requests needed.

One histogram per tenant and model, in which old requests fade. The number of histograms is bounded, the one that was
used longest ago goes first. Pure.
"""

from bisect import bisect_left
from collections import OrderedDict, abc

QUANTILE = 0.9
FADING = 0.98
"""What a request's weight in the histogram is multiplied by at each later one: the last fifty count most."""
MIN_WEIGHT = 5.0
"""Of a histogram that is believed; six requests."""
DEFAULT_TOKENS = 256
MAX_HISTOGRAMS = 4096
# Half powers of two, rounded up: an estimate is at most half as much again as what it stands for.
BOUNDS: tuple[int, ...] = tuple(sorted({*(1 << n for n in range(18)), *(3 << n for n in range(16))}))

Tenant = abc.Hashable


class ExpectedOutput:
    """The histograms of one process."""

    def __init__(self, max_histograms: int = MAX_HISTOGRAMS) -> None:
        self._max_histograms = max_histograms
        self._weights: OrderedDict[tuple[Tenant, str], list[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._weights)

    def observe(self, tenant: Tenant, model: str, num_tokens: int) -> None:
        """A request has ended with so many output tokens."""
        key = (tenant, model)
        weights = self._weights.pop(key, None) or [0.0] * len(BOUNDS)
        for index, weight in enumerate(weights):
            weights[index] = weight * FADING
        weights[min(bisect_left(BOUNDS, num_tokens), len(BOUNDS) - 1)] += 1.0
        self._weights[key] = weights
        if len(self._weights) > self._max_histograms:
            self._weights.popitem(last=False)

    def expected(self, tenant: Tenant, model: str) -> int:
        """So many tokens suffice for nine in ten requests, as far as is known."""
        weights = self._weights.get((tenant, model))
        if weights is None or sum(weights) < MIN_WEIGHT:
            return DEFAULT_TOKENS
        rest = QUANTILE * sum(weights)
        for bound, weight in zip(BOUNDS, weights, strict=True):
            rest -= weight
            if rest <= 0:
                return bound
        return BOUNDS[-1]
