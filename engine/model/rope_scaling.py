"""How models stretch the rotations of their positions over a context longer than the one they were first trained for.

Each scaling divides the frequency of every rotated pair by a number of its own; YaRN also lengthens what is rotated.
Names as in transformers' `rope_parameters`.
"""

import math
from dataclasses import dataclass
from typing import Protocol

YARN_BETA_FAST, YARN_BETA_SLOW = 32.0, 1.0  # Peng et al. 2023, §3.2: what they used for the Llama family


class RopeScaling(Protocol):
    """`scale` is what cosine and sine are multiplied by."""

    @property
    def scale(self) -> float: ...

    def divisors(self, theta: float, head_dim: int) -> tuple[float, ...]:
        """What the frequency of each pair is divided by, `head_dim` / 2 of them."""


def plain_frequencies(theta: float, head_dim: int) -> list[float]:
    """Radians per token of each pair. Source: Su et al. 2021, §3.2.2."""
    return [theta ** (-2 * pair / head_dim) for pair in range(head_dim // 2)]


@dataclass(frozen=True, slots=True)
class LinearRopeScaling:
    """Every position counts as a `factor`-th of itself. Source: Chen et al. 2023, §2.3."""

    factor: float

    @property
    def scale(self) -> float:
        return 1.0

    def divisors(self, theta: float, head_dim: int) -> tuple[float, ...]:
        return (self.factor,) * (head_dim // 2)


@dataclass(frozen=True, slots=True)
class Llama3RopeScaling:
    """Stretches the slow rotary frequencies. Source: Llama 3.1, transformers `rope_type` "llama3"."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_tokens: int

    @property
    def scale(self) -> float:
        return 1.0

    def divisors(self, theta: float, head_dim: int) -> tuple[float, ...]:
        return tuple(self._divisor(frequency) for frequency in plain_frequencies(theta, head_dim))

    def _divisor(self, frequency: float) -> float:
        num_turns = self.original_context_tokens * frequency / (2 * math.pi)
        if num_turns < self.low_freq_factor:
            return self.factor
        if num_turns > self.high_freq_factor:
            return 1.0
        smooth = (num_turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return 1.0 / ((1 - smooth) / self.factor + smooth)


@dataclass(frozen=True, slots=True)
class YarnRopeScaling:
    """Pairs that turn more than `beta_fast` times within the original context stay as they are, those that turn less
    than `beta_slow` times are slowed by `factor`, those between them in part. Source: Peng et al. 2023, §3.2-3.4.

    `truncate` widens the range between the two to whole pairs.
    """

    factor: float
    original_context_tokens: int
    scale: float
    beta_fast: float = YARN_BETA_FAST
    beta_slow: float = YARN_BETA_SLOW
    truncate: bool = True

    def divisors(self, theta: float, head_dim: int) -> tuple[float, ...]:
        low, high = (self._pair_that_turns(times, theta, head_dim) for times in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        width = high - low or 0.001  # as in the published code: no division by zero
        slowed = (min(1.0, max(0.0, (pair - low) / width)) for pair in range(head_dim // 2))
        return tuple(1.0 / (part / self.factor + 1 - part) for part in slowed)

    def _pair_that_turns(self, times: float, theta: float, head_dim: int) -> float:
        """The (fractional) pair that turns so often within the original context."""
        return head_dim * math.log(self.original_context_tokens / (times * 2 * math.pi)) / (2 * math.log(theta))


def yarn_scale(factor: float, weight: float = 1.0) -> float:
    """The length that Peng et al. 2023 (§3.4) found best for `factor`; `weight` is transformers' `mscale`."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
