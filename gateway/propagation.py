"""Weights, classes and revocations, from the newest snapshot to what runs: an edit governs what is queued, too.

A request brings its weights and its class along; what changes afterwards is told here, with the revision that changed
it, so that an engine that hears of it twice, or from several gateways, keeps the newest. An engine is told everything
when the connection to it is new, and from then on what has changed.
"""

import asyncio
from collections import abc
from uuid import UUID

import structlog

from gateway.engine_client import EngineClient, NodeUpdate, PriorityClass
from gateway.errors import GatewayError, NoEngineError, cause_of
from gateway.store.cache import TenancyCache
from gateway.store.snapshot import EMPTY_SNAPSHOT, TenancySnapshot

AbortKey = abc.Callable[[UUID], abc.Awaitable[None]]
"""Cancels what the key with this id has running on this gateway."""

RETRY_S = 0.5
# An engine that refuses is a bug or another release: it is told again, but not often.
REFUSED_RETRY_S = 10.0

log = structlog.get_logger()


class Revocations:
    """Ends what a key has running here as soon as this gateway hears that the key was revoked so.

    Once is enough: a request that was authenticated before and would begin afterwards is turned away at its beginning,
    by the same snapshot.
    """

    def __init__(self, cache: TenancyCache, abort_key: AbortKey) -> None:
        self._cache = cache
        self._abort_key = abort_key

    async def run(self) -> None:
        """Until cancelled."""
        seen = EMPTY_SNAPSHOT
        while True:
            newer = await self._cache.newer_than(seen.revision)
            for key_id in aborted_keys(seen, newer):
                await self._abort_key(key_id)
            seen = newer


def aborted_keys(seen: TenancySnapshot, snapshot: TenancySnapshot) -> list[UUID]:
    """The keys whose running work ends in `snapshot` and did not in `seen`."""
    if snapshot.keys is seen.keys:
        return []
    return [
        key.key_id
        for public_id, key in snapshot.keys.items()
        if key.aborts_inflight and not ((old := seen.keys.get(public_id)) and old.aborts_inflight)
    ]


class Propagation:
    """Keeps every engine at the newest revision that this gateway knows."""

    def __init__(self, cache: TenancyCache, engines: abc.Sequence[EngineClient]) -> None:
        self._cache = cache
        self._engines = tuple(engines)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for engine in self._engines:
                group.create_task(self._follow(engine))

    async def _follow(self, engine: EngineClient) -> None:
        told = EMPTY_SNAPSHOT
        while True:
            snapshot = await self._cache.newer_than(told.revision)
            try:
                await tell(engine, told, snapshot)
            except NoEngineError:
                told = EMPTY_SNAPSHOT
                await asyncio.sleep(RETRY_S)
                continue
            except GatewayError as error:
                log.error("engine refuses weights", address=engine.address, error=str(error), **cause_of(error))
                await asyncio.sleep(REFUSED_RETRY_S)
                continue
            told = snapshot if await self._is_connected_until_newer(engine, snapshot.revision) else EMPTY_SNAPSHOT

    async def _is_connected_until_newer(self, engine: EngineClient, revision: int) -> bool:
        """Return when there is a newer revision, True, or the engine is gone, False."""
        newer = asyncio.ensure_future(self._cache.newer_than(revision))
        gone = asyncio.ensure_future(engine.until_disconnected())
        try:
            await asyncio.wait((newer, gone), return_when=asyncio.FIRST_COMPLETED)
            return not gone.done()
        finally:
            newer.cancel()
            gone.cancel()


async def tell(engine: EngineClient, told: TenancySnapshot, snapshot: TenancySnapshot) -> None:
    """The engine knows what `snapshot` has and `told` has not. A new engine is asked whatever there is to tell.

    Raises GatewayError if it does not take it.
    """
    updates = changed_nodes(told, snapshot)
    if updates:
        await engine.update_nodes(updates)
    if snapshot.classes != told.classes or told is EMPTY_SNAPSHOT:
        classes = [
            PriorityClass(named.name, named.rank, named.min_share, named.preemptible)
            for named in snapshot.classes.values()
        ]
        await engine.update_classes(classes, snapshot.revision)


def changed_nodes(told: TenancySnapshot, snapshot: TenancySnapshot) -> list[NodeUpdate]:
    """Organizations and teams whose policy is another one in `snapshot` than in `told`, organizations first."""
    updates = []
    for node_id, organization in snapshot.organizations.items():
        known = told.organizations.get(node_id)
        if known is None or known.policy.revision != organization.policy.revision:
            updates.append(NodeUpdate((str(node_id),), organization.weight, organization.policy.revision))
    for node_id, team in snapshot.teams.items():
        known_team = told.teams.get(node_id)
        if known_team is None or known_team.policy.revision != team.policy.revision:
            path = (str(team.organization.id), str(node_id))
            updates.append(NodeUpdate(path, team.weight, team.policy.revision))
    return updates
