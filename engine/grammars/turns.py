"""Whose grammar is compiled next, and whose has no place to wait. asyncio thread only.

A few are compiled at a time. Tenants take turns, however many grammars each of them has waiting, and the last turn that
is left goes to none that has one: however long a tenant's grammars take, and no thread can be stopped, those of another
one do not wait for them.

While there are places to wait anybody may take them; where none is left, the tenant that has most of them gives one up
to a tenant that has fewer. So no tenant is turned away because of what another one asks for.
"""

import asyncio
from collections import Counter, OrderedDict

from engine.errors import GrammarsBusyError, InvalidFieldError
from engine.grammars.matcher import CompiledGrammar
from engine.grammars.source import GrammarSource

MAX_COMPILING = 2  # threads; what is slow to compile must not take every core
MAX_WAITING = 64  # grammars whose turn has not come
MAX_REMEMBERED = 1024  # tenants, those that had a turn last


class Work:
    """One grammar that waits for its turn, or that a thread compiles: no thread can be stopped.

    `key` tells grammars apart; `num_askers` are those that want it, by tenant, written by the compiler.
    """

    def __init__(self, key: bytes, source: GrammarSource) -> None:
        self.key = key
        self.source = source
        self.num_askers = Counter[str]()
        self._task: asyncio.Task[CompiledGrammar] | None = None
        self._is_decided = asyncio.Event()  # it has had its turn, or gets none
        self._timeout_s = 0.0
        self._gives_up_at = 0.0  # by the clock of asyncio

    @property
    def task(self) -> "asyncio.Task[CompiledGrammar] | None":
        """The thread's work; None: its turn has not come."""
        return self._task

    @property
    def sole_tenant(self) -> str | None:
        """The one tenant that wants it; None where several do."""
        return next(iter(self.num_askers)) if len(self.num_askers) == 1 else None

    def begin(self, task: "asyncio.Task[CompiledGrammar]", timeout_s: float) -> None:
        """Its turn has come: `task` does it."""
        self._task, self._timeout_s = task, timeout_s
        self._gives_up_at = asyncio.get_running_loop().time() + timeout_s
        self._is_decided.set()

    def give_way(self) -> None:
        """It gets no turn."""
        self._is_decided.set()

    async def result(self) -> CompiledGrammar:
        """What it comes to. Raises InvalidFieldError, and GrammarsBusyError where it has given way."""
        await self._is_decided.wait()
        if self._task is None:
            raise GrammarsBusyError
        try:
            async with asyncio.timeout_at(self._gives_up_at):
                return await asyncio.shield(self._task)  # others may wait for it, too
        except TimeoutError:
            text = f"could not be compiled within {self._timeout_s:g} s"
            raise InvalidFieldError(self.source.field, text) from None


class Turns:
    """The works that wait, in the order in which they came, and those whose turn it is, with whom it is for."""

    def __init__(self) -> None:
        self._waiting: list[Work] = []
        self._begun: dict[Work, frozenset[str]] = {}
        self._turn_by_tenant: OrderedDict[str, int] = OrderedDict()
        self._num_turns = 0

    def enter(self, work: Work, tenant_id: str) -> Work | None:
        """`work`, which `tenant_id` asks for, waits; returns what had to make room for it, which has given way.

        Raises GrammarsBusyError where there is no room.
        """
        displaced = self._displaced_by(tenant_id) if len(self._waiting) >= MAX_WAITING else None
        if displaced is not None:
            self._waiting.remove(displaced)
            displaced.give_way()
        self._waiting.append(work)
        return displaced

    def leave(self, work: Work) -> None:
        """Nobody wants it any more."""
        self._waiting.remove(work)

    def take_next(self) -> Work | None:
        """Takes the work whose turn comes; it holds the turn until `end`. It is that of the tenant whose last turn is
        longest ago. None: all turns are taken, or nobody waits that may have the one that is left.

        Something may come where a work entered, was joined by a tenant, or ended; nothing else makes one eligible.
        """
        num_left = MAX_COMPILING - len(self._begun)
        if num_left <= 0:
            return None
        having = frozenset[str]().union(*self._begun.values()) if num_left == 1 else frozenset[str]()
        free = [work for work in self._waiting if not work.num_askers.keys() <= having]
        work = min(free, key=self._last_turn, default=None)  # the first of those that are level
        if work is None:
            return None
        self._waiting.remove(work)
        self._begun[work] = frozenset(work.num_askers)
        self._num_turns += 1
        for tenant_id in work.num_askers:
            self._turn_by_tenant[tenant_id] = self._num_turns
            self._turn_by_tenant.move_to_end(tenant_id)
        while len(self._turn_by_tenant) > MAX_REMEMBERED:
            self._turn_by_tenant.popitem(last=False)
        return work

    def end(self, work: Work) -> None:
        """It has had its turn."""
        del self._begun[work]

    def _last_turn(self, work: Work) -> int:
        return min(self._turn_by_tenant.get(tenant_id, 0) for tenant_id in work.num_askers)

    def _displaced_by(self, tenant_id: str) -> Work:
        """The newest work of the tenant with the most places. One that several tenants want is nobody's flood.

        Raises GrammarsBusyError where nobody has more places than `tenant_id`.
        """
        num_places = Counter(work.sole_tenant for work in self._waiting)
        del num_places[None]
        most = max(num_places.values(), default=0)
        if most <= num_places[tenant_id] + 1:
            raise GrammarsBusyError
        return next(work for work in reversed(self._waiting) if num_places[work.sole_tenant] == most)
