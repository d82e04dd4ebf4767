"""What a loop that must go on does about a database that fails: say it once, try again, say when it is over.

Knows neither statements nor loops. A server that fails over, is read-only for a while or has lost a right is an outage
like one that is gone.
"""

import asyncpg  # type: ignore[import-untyped]  # it ships no types
import structlog
from sqlalchemy.exc import SQLAlchemyError

from gateway.store.errors import StoreError

DATABASE_ERRORS: tuple[type[Exception], ...] = (
    StoreError,
    SQLAlchemyError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)
"""Everything that a statement can end with because of the database, translated or not."""

log = structlog.get_logger()


class Outage:
    """One loop's view of the database. `event` is its line in the log."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._is_on = False

    @property
    def is_on(self) -> bool:
        """Whether the last attempt failed."""
        return self._is_on

    def note(self, error: Exception, **figures: object) -> None:
        """An attempt failed. The first one of an outage is logged."""
        if not self._is_on:
            self._is_on = True
            log.warning(self._event, error=str(error) or type(error).__name__, **figures)

    def end(self) -> None:
        """An attempt succeeded."""
        if self._is_on:
            self._is_on = False
            log.info(f"over: {self._event}")
