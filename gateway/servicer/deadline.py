"""The caller's deadline, and what of it the engine and the gateway may use."""

import asyncio
import math
from dataclasses import dataclass

from gateway.errors_requests import DeadlineExceededError

# The engine stops this long before the caller's deadline, so that the answer still reaches the caller.
DEADLINE_MARGIN = 0.1
MAX_DEADLINE_MARGIN_S = 0.25
# A longer one is as good as this; in nanoseconds it has to fit 64 bits.
MAX_DEADLINE_S = 365 * 86_400.0
NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Deadline:
    """The caller's deadline on the event loop's clock, and the earlier moments by which engine and gateway stop."""

    at_s: float | None
    margin_s: float

    @classmethod
    def after(cls, time_left_s: float | None) -> "Deadline":
        if time_left_s is None or math.isinf(time_left_s):
            return cls(None, 0.0)
        time_left_s = min(time_left_s, MAX_DEADLINE_S)
        margin_s = min(MAX_DEADLINE_MARGIN_S, DEADLINE_MARGIN * time_left_s)
        return cls(asyncio.get_running_loop().time() + time_left_s, margin_s)

    @property
    def give_up_at_s(self) -> float | None:
        """When the gateway answers without the engine: after the engine's deadline, before the caller's."""
        return None if self.at_s is None else self.at_s - self.margin_s / 2

    @property
    def engine_ns(self) -> int | None:
        """What is left for the engine from now on."""
        if self.at_s is None:
            return None
        return int((self.at_s - self.margin_s - asyncio.get_running_loop().time()) * NS_PER_S)

    def require_left(self) -> None:
        """Raises DeadlineExceededError if the engine would have no time at all."""
        left_ns = self.engine_ns
        if left_ns is not None and left_ns <= 0:
            raise DeadlineExceededError
