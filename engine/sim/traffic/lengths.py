"""Distributions of lengths, by name.

    64                      always 64
    uniform:48:80           every whole number from 48 to 80
    lognormal:MEDIAN:SIGMA  of which half lie below MEDIAN; p99 is MEDIAN * exp(2.33 SIGMA)
    pareto:MIN:ALPHA        heavy-tailed: a share (MIN/x)^ALPHA lies above x

Each may end with a largest value, to which longer draws are cut: `lognormal:200:1:4096`.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.sim.traffic.errors import TrafficSpecError
from engine.sim.traffic.row import MAX_TOKENS

DEFAULT_MAX_TOKENS = 131_072
KNOWN_LENGTHS = "a number, uniform:A:B, lognormal:MEDIAN:SIGMA or pareto:MIN:ALPHA"
NUM_PARAMETERS = {"fixed": 1, "uniform": 2, "lognormal": 2, "pareto": 2}


@dataclass(frozen=True, slots=True)
class Lengths:
    """`kind` with its two parameters, cut to [1, max_tokens]."""

    kind: str
    first: float
    second: float
    max_tokens: int

    def draw(self, generator: np.random.Generator, num_draws: int) -> npt.NDArray[np.int64]:
        """So many lengths; what no number can hold is cut like any other tail."""
        with np.errstate(over="ignore"):
            drawn = self._drawn(generator, num_draws)
        lengths: npt.NDArray[np.int64] = np.clip(np.rint(drawn), 1, self.max_tokens).astype(np.int64)
        return lengths

    def _drawn(self, generator: np.random.Generator, num_draws: int) -> npt.NDArray[np.float64]:
        if self.kind == "fixed":
            return np.full(num_draws, self.first)
        if self.kind == "uniform":
            return np.floor(self.first + (self.second - self.first + 1) * generator.random(num_draws))
        if self.kind == "lognormal":
            return self.first * np.exp(self.second * generator.standard_normal(num_draws))
        return self.first * (1 + generator.pareto(self.second, num_draws))


def parse_lengths(spec: str) -> Lengths:
    """Raises TrafficSpecError."""
    kind, *words = spec.split(":")
    if kind not in NUM_PARAMETERS:
        kind, words = "fixed", spec.split(":")
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        raise TrafficSpecError(spec, f"lengths are {KNOWN_LENGTHS}") from None
    num_parameters = NUM_PARAMETERS[kind]
    if len(numbers) not in (num_parameters, num_parameters + 1):
        raise TrafficSpecError(spec, f"{kind} takes {num_parameters} numbers and perhaps a largest length")
    if not all(0 < number < math.inf for number in numbers):
        raise TrafficSpecError(spec, "its numbers must be finite and above 0")
    if max(numbers) > MAX_TOKENS:
        raise TrafficSpecError(spec, f"a length is at most {MAX_TOKENS:,} tokens")
    first, second = numbers[0], numbers[num_parameters - 1]
    if kind == "uniform" and first > second:
        raise TrafficSpecError(spec, "its smallest length is above its largest")
    # What is asked for by name is not cut; a tail is.
    longest = max(DEFAULT_MAX_TOKENS, int(second)) if kind in ("fixed", "uniform") else DEFAULT_MAX_TOKENS
    return Lengths(kind, first, second, int(numbers[-1]) if len(numbers) > num_parameters else longest)
