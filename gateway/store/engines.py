"""The statement on engines: what they were told is on record. Their state itself is theirs, not the database's."""

from collections import abc
from uuid import NAMESPACE_URL, uuid5

from gateway.store.audit import Document
from gateway.store.changes import Change, Changed, open_change
from gateway.store.db import Database


async def record_switch(
    database: Database,
    change: Change,
    resource: str,
    switch: abc.Callable[[], abc.Awaitable[tuple[Document, Document]]],
) -> None:
    """`switch`, which returns what was in force before and is now, has been done and is in the audit chain.

    A retry does nothing. No other change is made meanwhile, so that the chain has switches in the order in which the
    engines saw them. Raises RequestIdReusedError, DatabaseUnavailableError (before the switch) and what `switch`
    raises, which is then not recorded.
    """
    async with open_change(database, change) as tx:
        if await tx.find_replayed() is not None:
            return
        before, after = await switch()
        resource_id = uuid5(NAMESPACE_URL, resource)
        await tx.record(Changed("engines.setSchedulingPolicy", resource, resource_id, before, after))
