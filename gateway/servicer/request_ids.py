"""Client request ids: one generation for each, on whichever gateway it is asked for, and its usage billed once.

Here the same id waits for the first call under it and then reads that one's generation. Between gateways the database
decides: exactly one of those that ask gets the id. Without the database a team that serves stale has its ids held
apart by each gateway alone, so that a retry at another one may run a second time; a team that fails closed is refused.
"""

import asyncio
from collections import abc, deque
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from uuid import UUID

import structlog
from uuid_utils.compat import uuid7

from gateway.auth import Principal
from gateway.engine_client import EngineClient
from gateway.errors import NoEngineError, StoreUnavailableError
from gateway.errors_requests import GenerationElsewhereError, RequestIdReusedError
from gateway.servicer.ask import GenerationAsk
from gateway.servicer.live import LiveGenerations, RequestName
from gateway.servicer.relay import Generation
from gateway.servicer.transcript import Transcript
from gateway.store.cache import STORE_LOST_AFTER_S, TenancyCache
from gateway.store.db import Database
from gateway.store.enums import StoreLossAction
from gateway.store.errors import DatabaseUnavailableError
from gateway.store.generations import (
    RequestClaim,
    RequestKey,
    StoredUsage,
    TakenRequest,
    claim_request,
    finish_requests,
    forget_requests,
    keep_requests,
    purge_requests,
    take_over_request,
)
from gateway.store.outage import DATABASE_ERRORS, Outage

WRITE_EVERY_S = 0.05
RETRY_S = 0.5
KEEP_EVERY_S = 10.0
PURGE_EVERY_S = 3600.0
MAX_BATCH = 500
# While the database is away. What is lost beyond it is an id that stands for a generation which has long ended.
MAX_WAITING = 100_000

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class Claim:
    """An id on its way to a generation. `generation` is set when that one runs; `stored` if another one has ended."""

    row: RequestClaim
    decided: asyncio.Event
    generation: Generation | None = None
    stored: StoredUsage | None = None

    @property
    def generation_id(self) -> str:
        return str(self.row.generation_id)


class RequestIds:
    """The ids that this process is asked for. `instance_id` tells it from every other process, and from itself before.

    `address` says where it listens.
    """

    def __init__(
        self,
        database: Database,
        cache: TenancyCache,
        live: LiveGenerations,
        engines: abc.Sequence[EngineClient],
        address: str,
    ) -> None:
        self._database = database
        self._cache = cache
        self._live = live
        self._engines = engines
        self._address = address
        self._instance_id = uuid7()
        self._claims: dict[RequestName, Claim] = {}
        self._ended: deque[RequestClaim] = deque()
        self._given_up: deque[RequestClaim] = deque()
        self._by_generation: dict[str, RequestClaim] = {}
        self._has_news = asyncio.Event()
        self._writing = asyncio.Lock()

    @property
    def num_waiting(self) -> int:
        """Changes that are not written yet."""
        return len(self._ended) + len(self._given_up)

    async def find(self, principal: Principal, ask: GenerationAsk) -> Generation | Transcript | None:
        """The generation here that the id of `ask` stands for; waits while another call is about to make it.

        Raises RequestIdReusedError where the id belongs to another request.
        """
        name = _name(principal, ask)
        while (claim := self._claims.get(name)) is not None:
            _require_same(claim.row.fingerprint, ask)
            await claim.decided.wait()
        found = self._live.find_request(name)
        if found is None:
            return None
        transcript = found.transcript if isinstance(found, Generation) else found
        _require_same(transcript.fingerprint, ask)
        return found

    @asynccontextmanager
    async def claim(self, principal: Principal, ask: GenerationAsk) -> abc.AsyncIterator[Claim]:
        """The id is this call's inside the block, and stands for the generation that is set there.

        Without one it is free again. Raises RequestIdReusedError, GenerationElsewhereError, and StoreUnavailableError
        where the team fails closed. Call it right after `find`, with no await in between.
        """
        name = _name(principal, ask)
        assert name not in self._claims, "two calls may not claim the same id"
        key = RequestKey(name[0], UUID(name[1]))
        claim = Claim(RequestClaim(key, ask.fingerprint, uuid7(), self._instance_id, self._address), asyncio.Event())
        self._claims[name] = claim
        try:
            claim.stored = await self._ask_store(principal, ask, claim.row)
            yield claim
        finally:
            del self._claims[name]
            claim.decided.set()
            if claim.generation is None and claim.stored is None:
                # The statement may have been cancelled after it took effect.
                self._note(self._given_up, claim.row)

    def started(self, claim: Claim, generation: Generation) -> None:
        """The generation under the id runs."""
        claim.generation = generation
        self._by_generation[claim.generation_id] = claim.row

    def ended(self, generation_id: str, *, is_billed: bool) -> None:
        """A generation has ended, under an id or not. One that cost nothing frees its id: a retry may fare better."""
        row = self._by_generation.pop(generation_id, None)
        if row is not None:
            self._note(self._ended if is_billed else self._given_up, row)

    async def run(self) -> None:
        """Write what has happened, say what still runs, and forget what has expired, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write_forever())
            group.create_task(self._repeat(KEEP_EVERY_S, self._keep))
            group.create_task(self._repeat(PURGE_EVERY_S, self._purge))

    async def flush(self, timeout_s: float) -> None:
        """Everything so far is written, or `timeout_s` has passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.num_waiting:
                    try:
                        await self._write()
                    except DATABASE_ERRORS:
                        await asyncio.sleep(RETRY_S)

    def _note(self, waiting: deque[RequestClaim], row: RequestClaim) -> None:
        if self.num_waiting < MAX_WAITING:
            waiting.append(row)
            self._has_news.set()

    async def _ask_store(self, principal: Principal, ask: GenerationAsk, row: RequestClaim) -> StoredUsage | None:
        try:
            # A database that is known to be away is not waited for.
            if self._cache.staleness_s() > STORE_LOST_AFTER_S:
                raise DatabaseUnavailableError("nothing was heard of it lately")
            taken = await self._claim_in_store(row)
        except DatabaseUnavailableError:
            if self._fails_closed(principal):
                raise StoreUnavailableError from None
            return None
        if taken is None:
            return None
        _require_same(taken.fingerprint, ask)
        if taken.usage is None:
            raise GenerationElsewhereError(str(taken.generation_id), taken.gateway)
        return taken.usage

    async def _claim_in_store(self, row: RequestClaim) -> TakenRequest | None:
        """None: the id stands for the generation of `row`."""
        while True:
            taken = await claim_request(self._database, row)
            if taken is None or not taken.is_silent or taken.fingerprint != row.fingerprint:
                return taken
            # Silent to the database alone, a gateway goes on and bills.
            if await self._runs(str(taken.generation_id)):
                return taken
            if await take_over_request(self._database, row, taken.generation_id):
                return None

    async def _runs(self, generation_id: str) -> bool:
        """Whether an engine that answers has it."""
        for engine in self._engines:
            with suppress(NoEngineError):
                if await engine.explain(generation_id) is not None:
                    return True
        return False

    def _fails_closed(self, principal: Principal) -> bool:
        team = self._cache.current.teams.get(principal.team_id) if principal.team_id is not None else None
        if team is None:
            return True
        policies = (team.policy, team.organization.policy)
        return any(policy.on_store_loss is StoreLossAction.FAIL_CLOSED for policy in policies)

    async def _write_forever(self) -> None:
        outage = Outage("request ids wait for the database")
        while True:
            await self._has_news.wait()
            await asyncio.sleep(WRITE_EVERY_S)
            try:
                await self._write()
                outage.end()
            except DATABASE_ERRORS as error:
                outage.note(error, num_waiting=self.num_waiting)
                await asyncio.sleep(RETRY_S)

    async def _write(self) -> None:
        """One batch of each kind is written and forgotten. One writer at a time: what it forgets is what it wrote."""
        async with self._writing:
            for waiting, statement in ((self._ended, finish_requests), (self._given_up, forget_requests)):
                batch = list(islice(waiting, MAX_BATCH))
                await statement(self._database, batch)
                for _ in batch:
                    waiting.popleft()
            if not self.num_waiting:
                self._has_news.clear()

    async def _keep(self) -> None:
        if self._by_generation:
            await keep_requests(self._database, self._instance_id)

    async def _purge(self) -> None:
        while await purge_requests(self._database):
            pass

    async def _repeat(self, every_s: float, act: abc.Callable[[], abc.Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(every_s)
            with suppress(*DATABASE_ERRORS):  # the writer tells of an outage; the next round makes good for this one
                await act()


def _name(principal: Principal, ask: GenerationAsk) -> RequestName:
    assert principal.team_id is not None, "a platform key does not generate"
    return principal.team_id, ask.request_id


def _require_same(fingerprint: bytes, ask: GenerationAsk) -> None:
    if fingerprint != ask.fingerprint:
        raise RequestIdReusedError
