"""When keys were last used: collected here, written in one batch a minute."""

import asyncio
from uuid import UUID

from gateway.store.db import Database
from gateway.store.keys import touch_last_used
from gateway.store.outage import DATABASE_ERRORS, Outage

FLUSH_INTERVAL_S = 60.0


class LastUsed:
    """The keys that were used since the last batch. Their number is bounded by that of the keys that exist."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._key_ids: set[UUID] = set()
        self._outage = Outage("last use of keys not written")

    def note(self, key_id: UUID) -> None:
        self._key_ids.add(key_id)

    async def run(self) -> None:
        """Flush until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_INTERVAL_S)
            await self.flush()

    async def flush(self) -> None:
        """Everything noted so far is written, or kept for the next batch if the database is away."""
        key_ids, self._key_ids = self._key_ids, set()
        if not key_ids:
            return
        try:
            await touch_last_used(self._database, key_ids)
            self._outage.end()
        except DATABASE_ERRORS as error:
            self._key_ids |= key_ids
            self._outage.note(error, num_keys=len(self._key_ids))
