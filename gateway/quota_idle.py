"""Whether an engine has tokens that nobody else wants: the condition on which work over a limit may borrow.

Asked on demand. An answer serves for a moment, and what was let in on it counts against it, so that a burst of requests
cannot all be given the same idle tokens.
"""

import asyncio
import time
from collections import abc, defaultdict
from dataclasses import dataclass
from typing import Protocol

from gateway.errors import NoEngineError
from gateway.status import EngineStats

ANSWER_LASTS_S = 0.25


class Engine(Protocol):
    """What is asked of an engine."""

    @property
    def address(self) -> str: ...

    async def stats(self) -> EngineStats: ...


class ServedModels(Protocol):
    """Where the engines are, and what each of them serves."""

    @property
    def engines(self) -> abc.Sequence[Engine]: ...

    def model_name_at(self, address: str) -> str: ...


@dataclass(slots=True)
class _Answer:
    """Written by IdleTokens and TakenIdle only."""

    until_s: float
    num_tokens: int


@dataclass(slots=True, eq=False)
class TakenIdle:
    """Tokens of one answer. What is given back counts for that one, never for what an engine has said since."""

    _answer: _Answer
    _num_tokens: int

    def give_back(self) -> None:
        """They are not needed after all. Idempotent."""
        self._answer.num_tokens += self._num_tokens
        self._num_tokens = 0


class IdleTokens:
    """The idle tokens of each model, over all engines that serve it."""

    def __init__(self, models: ServedModels, clock_s: abc.Callable[[], float] = time.monotonic) -> None:
        self._models = models
        self._clock_s = clock_s
        self._answers: dict[str, _Answer] = {}
        # One for each model that an engine serves: an engine that hangs holds up nobody who asks for another model.
        self._asking: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def take(self, model: str, num_tokens: int) -> TakenIdle | None:
        """`num_tokens` that an engine of `model` has, nobody waiting for them; None where there is none."""
        async with self._asking[model]:
            answer = self._answers.get(model)
            if answer is None or answer.until_s <= self._clock_s():
                num_idle = max([0, *await asyncio.gather(*map(_num_idle_tokens, self._engines_of(model)))])
                answer = self._answers[model] = _Answer(self._clock_s() + ANSWER_LASTS_S, num_idle)
        if answer.num_tokens < num_tokens:
            return None
        answer.num_tokens -= num_tokens
        return TakenIdle(answer, num_tokens)

    def _engines_of(self, model: str) -> list[Engine]:
        return [engine for engine in self._models.engines if self._models.model_name_at(engine.address) == model]


async def _num_idle_tokens(engine: Engine) -> int:
    """How many tokens fit the engine's free blocks; none while somebody waits, or the engine is away."""
    try:
        stats = await engine.stats()
    except NoEngineError:
        return 0
    if stats.requests.has_held_up or stats.is_draining:
        return 0
    return stats.blocks.num_free_device_blocks * stats.blocks.block_size
