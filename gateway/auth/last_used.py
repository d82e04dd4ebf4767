"""What the use of keys leaves behind, collected here and written in one batch a minute: when they were used, and hashes
made anew with the newest pepper."""

import asyncio
import time
from collections import abc
from datetime import UTC, datetime
from uuid import UUID

from gateway.store.db import Database
from gateway.store.key_hashes import HashRenewal, renew_hashes
from gateway.store.keys import touch_last_used
from gateway.store.outage import DATABASE_ERRORS, Outage
from gateway.store.records import KeySecret

FLUSH_INTERVAL_S = 60.0


class LastUsed:
    """The keys that were used since the last batch, and when. Their number is bounded by that of the keys that exist.

    `now_s`: seconds since 1970.
    """

    def __init__(self, database: Database, now_s: abc.Callable[[], float] = time.time) -> None:
        self._database = database
        self._now_s = now_s
        self._uses: dict[UUID, float] = {}
        self._renewals: dict[tuple[UUID, bytes], HashRenewal] = {}
        self._writing = asyncio.Lock()
        self._outage = Outage("last use of keys not written")

    def note(self, key_id: UUID) -> None:
        """The key is used now."""
        self._uses[key_id] = self._now_s()

    def renew(self, key_id: UUID, old_digest: bytes, renewed: KeySecret) -> None:
        """The secret with `old_digest` is to be stored as `renewed`."""
        self._renewals[key_id, old_digest] = HashRenewal(key_id, old_digest, renewed)

    async def run(self) -> None:
        """Flush until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_INTERVAL_S)
            await self.flush()

    async def flush(self) -> None:
        """Everything noted so far is written. What the database does not take, or a cancellation cuts off, is kept."""
        try:
            async with self._writing:  # whoever comes second returns when the first one's is written, too
                await self._write_uses()
                await self._write_renewals()
            self._outage.end()
        except DATABASE_ERRORS as error:
            self._outage.note(error, num_keys=len(self._uses))

    async def _write_uses(self) -> None:
        uses, self._uses = self._uses, {}
        if not uses:
            return
        try:
            moments = {key_id: datetime.fromtimestamp(used_s, UTC) for key_id, used_s in uses.items()}
            await touch_last_used(self._database, moments)
        except BaseException:
            self._uses = uses | self._uses  # what was used again meanwhile keeps its later time
            raise

    async def _write_renewals(self) -> None:
        renewals, self._renewals = self._renewals, {}
        if not renewals:
            return
        try:
            await renew_hashes(self._database, list(renewals.values()))
        except BaseException:
            self._renewals = renewals | self._renewals
            raise
