"""The quota of one running generation that has reserved what is to be expected: extended while it decodes.

The engine may generate as far as it has been granted and pauses there, so what is sampled never exceeds what is
charged. The next slice is asked for a little ahead, so that nobody waits while there is quota, and under the limits of
that moment: a changed one counts from the next slice on, and whoever waits for it is woken. A refusal is dealt with
as the request says: wait until the bucket has refilled, go on as best effort, or end. Where nothing but BORROW limits
refuse, the rest is lent: it goes on as best effort, charged to the other limits only.
"""

import asyncio
from collections import abc
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import structlog

from gateway.engine_client import PriorityClass
from gateway.errors import UnavailableError
from gateway.quota_backend import QuotaBackend
from gateway.quota_terms import (
    Charge,
    Denied,
    Dimension,
    Limit,
    Mode,
    ReservationEndedError,
    Violation,
    ViolationKind,
)

SLICE_TOKENS = 64
AHEAD_TOKENS = 32
"""A slice is asked for when so many granted tokens are left."""
UNAVAILABLE_RETRY_S = 1.0
NS_PER_S = 1_000_000_000
# Not a name that a class of the store can have, and behind all of them.
BEST_EFFORT = PriorityClass("best_effort", 2**31 - 1, 0.0, preemptible=True)

log = structlog.get_logger()


class WhenExhausted(Enum):
    """What becomes of a generation whose tenant has no quota left for more output."""

    PAUSE = "pause"
    DEGRADE = "degrade"
    FINISH = "finish"


class Controls(Protocol):
    """What can be said to an engine about a running request."""

    def grant(self, max_output_tokens: int) -> None: ...

    def set_class(self, priority_class: PriorityClass) -> None: ...


@dataclass(frozen=True, slots=True)
class Holding:
    """What a generation has reserved at first, and how far it may get. `is_lent`: no BORROW limit is over it."""

    generation_id: str
    limits: tuple[Limit, ...]
    num_input_tokens: int
    num_granted_tokens: int
    max_output_tokens: int
    when_exhausted: WhenExhausted
    is_lent: bool = False

    @property
    def lent_id(self) -> str:
        """The reservation of what it uses beyond its BORROW limits."""
        return f"{self.generation_id}/lent"


class OutputSlices:
    """Keeps one generation supplied. `begin`, `note` and `end` are called by whoever relays its output."""

    def __init__(
        self,
        quota: QuotaBackend,
        holding: Holding,
        on_shadow: abc.Callable[[tuple[Violation, ...]], None],
        sleep: abc.Callable[[float], abc.Coroutine[object, object, None]] = asyncio.sleep,
        current_limits: abc.Callable[[], abc.Sequence[Limit] | None] = lambda: None,
    ) -> None:
        """`on_shadow` hears of the limits in SHADOW that would have refused a slice.

        `current_limits` are over the generation now; None: those that it began under.
        """
        self._quota = quota
        self._holding = holding
        self._on_shadow = on_shadow
        self._current_limits = current_limits
        self._sleep = sleep
        self._num_granted = holding.num_granted_tokens
        self._num_used = 0
        # Output tokens that its own reservation holds; what lies beyond is lent, or owed.
        self._num_own: int | None = None
        self._controls: Controls | None = None
        self._finish: abc.Callable[[], object] | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self._used_up = asyncio.Event()
        self._is_changed = asyncio.Event()

    @property
    def num_granted(self) -> int:
        """Output tokens that the engine may have generated."""
        return self._num_granted

    def begin(self, controls: Controls, finish: abc.Callable[[], object]) -> None:
        """The engine has the request; `finish` ends it because of its quota."""
        self._controls, self._finish = controls, finish
        self._keep_ahead()

    def note(self, num_output_tokens: int) -> None:
        """So many output tokens have been generated."""
        self._num_used = num_output_tokens
        if self._num_used >= self._num_granted:
            self._used_up.set()
        self._keep_ahead()

    def wake(self) -> None:
        """The limits may have changed: whoever waits for one asks again."""
        self._is_changed.set()

    def end(self) -> None:
        """Nothing more is asked for. What was charged stays until `settle`."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
        self._controls = self._finish = None

    def settle(self, used: Charge) -> None:
        """`used` takes the place of everything that was reserved for the generation. Idempotent."""
        if self._num_own is None:
            self._quota.settle(self._holding.generation_id, used)
            self._quota.release(self._holding.lent_id)  # it may have been made at this very moment
            return
        own = min(used.output_tokens, self._num_own)
        self._quota.settle(
            self._holding.generation_id, Charge(used.requests, used.input_tokens, own, used.cached_input_tokens)
        )
        self._quota.settle(self._holding.lent_id, Charge(0, 0, used.output_tokens - own))

    def release(self) -> None:
        """Nothing was used. Idempotent."""
        self._quota.release(self._holding.generation_id)
        self._quota.release(self._holding.lent_id)

    @property
    def _is_short(self) -> bool:
        left = self._num_granted - self._num_used
        return left <= AHEAD_TOKENS and self._num_granted < self._holding.max_output_tokens

    def _keep_ahead(self) -> None:
        if self._is_short and self._task is None and not self._is_over and self._controls is not None:
            self._task = asyncio.create_task(self._extend(), name=f"quota of {self._holding.generation_id}")

    async def _extend(self) -> None:
        try:
            while self._is_short and not self._is_over:
                await self._ask_for_more()
        except ReservationEndedError:
            self._is_over = True  # it has been settled: nothing is left to do for it
        # Our own bug must not leave a request paused for ever.
        except Exception:
            log.exception("quota not extended", generation_id=self._holding.generation_id)
            self._finish_now()
        finally:
            self._task = None

    async def _ask_for_more(self) -> None:
        self._used_up.clear()
        self._is_changed.clear()
        limits = self._limits()
        num_tokens = self._slice_tokens(limits)
        try:
            verdict = await self._quota.extend(self._own_id, Charge(0, output_tokens=num_tokens), limits)
        except UnavailableError:
            await self._sleep(UNAVAILABLE_RETRY_S)
            return
        if isinstance(verdict, Denied):
            await self._go_on_without(verdict)
            return
        self._grant(self._num_granted + num_tokens)
        if verdict.shadow_violations:
            self._on_shadow(verdict.shadow_violations)

    @property
    def _own_id(self) -> str:
        """The reservation that slices are added to."""
        return self._holding.generation_id if self._num_own is None else self._holding.lent_id

    def _limits(self) -> tuple[Limit, ...]:
        """Those over it now. Of live requests it was counted at its beginning."""
        found = self._current_limits()
        is_lent = self._holding.is_lent or self._num_own is not None
        return tuple(
            limit
            for limit in (self._holding.limits if found is None else found)
            if not limit.is_concurrency and not (is_lent and limit.mode is Mode.BORROW)
        )

    def _slice_tokens(self, limits: abc.Iterable[Limit]) -> int:
        left = self._holding.max_output_tokens - self._num_granted
        return max(1, min(SLICE_TOKENS, left, largest_output(limits, 0)))

    async def _go_on_without(self, denied: Denied) -> None:
        """Deal with a refusal. Another slice shall be asked for afterwards, unless it is over."""
        binding = [violation for violation in denied.violations if violation.limit.mode is not Mode.BORROW]
        if not binding:
            await self._borrow()
            return
        if any(violation.kind is not ViolationKind.RATE for violation in binding):
            await self._finish_when_used_up()  # no wait that a client would wait for brings more
            return
        match self._holding.when_exhausted:
            case WhenExhausted.PAUSE:
                await self._pause(max(violation.retry_after_ns or 0 for violation in binding) / NS_PER_S)
            case WhenExhausted.DEGRADE:
                self._degrade()
                self._grant(self._holding.max_output_tokens)
            case WhenExhausted.FINISH:
                await self._finish_when_used_up()

    async def _pause(self, seconds: float) -> None:
        """Until then, or until a limit has changed."""
        waits = [asyncio.ensure_future(self._is_changed.wait()), asyncio.ensure_future(self._sleep(seconds))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _borrow(self) -> None:
        """From here on the generation runs over its BORROW limits."""
        binding = [limit for limit in self._limits() if limit.mode is not Mode.BORROW]
        verdict = await self._quota.reserve(self._holding.lent_id, binding, Charge(requests=0))
        if isinstance(verdict, Denied):
            await self._go_on_without(verdict)
            return
        self._num_own = self._num_granted
        self._degrade()

    async def _finish_when_used_up(self) -> None:
        """The end comes when what was granted is used up and there is still no more."""
        if self._num_used < self._num_granted:
            await self._used_up.wait()
        else:
            self._finish_now()

    def _finish_now(self) -> None:
        self._is_over = True
        if self._finish is not None:
            self._finish()

    def _degrade(self) -> None:
        if self._controls is not None:
            self._controls.set_class(BEST_EFFORT)

    def _grant(self, num_tokens: int) -> None:
        self._num_granted = num_tokens
        if self._controls is not None:
            self._controls.grant(num_tokens)


def counts_output(limits: abc.Iterable[Limit]) -> bool:
    """Whether any of the limits has something to say about output tokens."""
    one = Charge(0, output_tokens=1)
    return any(not limit.is_concurrency and limit.amount(one) > 0 for limit in limits)


def largest_output(limits: abc.Iterable[Limit], num_input_tokens: int) -> int:
    """The most output tokens that one reservation can hold beside such an input, each limit being untouched."""
    largest = 2**62
    for limit in limits:
        if limit.mode is Mode.SHADOW:
            continue
        room = (limit.limit if limit.is_budget else limit.burst) - limit.amount(Charge(0, num_input_tokens))
        match limit.dimension:
            case Dimension.OUTPUT_TOKENS | Dimension.TOTAL_TOKENS:
                largest = min(largest, room)
            case Dimension.COST_UNITS | Dimension.BUDGET if limit.weights.output_token:
                largest = min(largest, room // limit.weights.output_token)
    return largest
