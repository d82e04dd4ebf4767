"""Sessions that were signed out of before they expired: a copied cookie is worth nothing from then on.

They are in Postgres, where every gateway of one database looks before it serves a page. While that does not answer,
what this process knows to have ended stays so, and nobody else is signed out: what others have ended meanwhile is open
until it is back. Nothing can be changed then, and operators need the pages that tell why.
"""

import asyncio
from datetime import UTC, datetime

import grpc
import structlog

from gateway.console.sign_in.sessions import Session
from gateway.errors import GatewayError
from gateway.store.console import end_sessions, has_session_ended
from gateway.store.db import Database
from gateway.store.errors import DatabaseUnavailableError

# A page that needs no database should not wait longer for it.
PATIENCE_S = 1.0

log = structlog.get_logger()


class SessionEndedError(GatewayError):
    """Somebody has signed out of this session."""

    code = grpc.StatusCode.UNAUTHENTICATED
    reason = "SESSION_ENDED"

    def __init__(self) -> None:
        super().__init__("you have signed out of this session")


class SessionEnds:
    """Use as: `end` when somebody signs out, `require_open` before every page. Mutated by itself only."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, datetime] = {}
        self._unwritten: dict[str, datetime] = {}

    async def end(self, session: Session) -> None:
        """It has ended here at once, and everywhere as soon as the database has it."""
        self._forget_expired()
        self._known[session.id] = self._unwritten[session.id] = session.expires_at
        try:
            await self._write()
        except (DatabaseUnavailableError, TimeoutError):
            log.warning("a console session was ended here, and elsewhere when the database is back")

    async def require_open(self, session: Session) -> None:
        """Raises SessionEndedError."""
        self._forget_expired()
        if session.id in self._known:
            raise SessionEndedError
        try:
            await self._write()
            async with asyncio.timeout(PATIENCE_S):
                has_ended = await has_session_ended(self._database, session.id)
        except (DatabaseUnavailableError, TimeoutError):
            return
        if has_ended:
            self._known[session.id] = session.expires_at
            raise SessionEndedError

    def _forget_expired(self) -> None:
        """Their cookies are worth nothing by themselves."""
        now = datetime.now(UTC)
        self._known, self._unwritten = (
            {each: expiry for each, expiry in ends.items() if expiry > now} for ends in (self._known, self._unwritten)
        )

    async def _write(self) -> None:
        """What could not be written before is. Raises DatabaseUnavailableError, TimeoutError."""
        if writing := dict(self._unwritten):
            async with asyncio.timeout(PATIENCE_S):
                await end_sessions(self._database, writing)
            for session_id in writing:
                self._unwritten.pop(session_id, None)
