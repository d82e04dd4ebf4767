"""The connection pool and its one translation of driver errors.

Owns the SQLAlchemy engine: sizes, timeouts, server version. Knows no table. Every wait has an end, so that a lost
server is an error within seconds and never a hang; `asyncpg` reads the URL itself, so everything libpq understands
works (`sslmode`, several hosts, `?host=/socket/directory`).
"""

import asyncio
from collections import abc
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import asyncpg  # type: ignore[import-untyped]  # it ships no types
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.pool import QueuePool

from gateway.status import PoolReport
from gateway.store.errors import (
    DatabaseUnavailableError,
    DatabaseUrlError,
    InvalidValueError,
    StatementTimeoutError,
    UnsupportedServerError,
)

MINIMUM_SERVER_VERSION = 15  # UNIQUE NULLS NOT DISTINCT
_SCHEMES = ("postgresql", "postgres", "postgresql+asyncpg")
# https://www.postgresql.org/docs/current/errcodes-appendix.html
_DATA_EXCEPTION = "22"  # a NUL in a text, a number out of range
_OUR_BUG = "42"  # syntax error or access rule violation
_NO_RIGHT = "42501"  # the one of them that an administrator causes and mends
_TOOK_TOO_LONG = ("57014", "55P03")  # statement_timeout, lock_timeout
_CONNECTING_ERRORS = (
    PoolTimeoutError,
    OSError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)


@dataclass(frozen=True, slots=True)
class DatabaseOptions:
    """Sizes and patience of one process's pool."""

    pool_size: int = 5
    max_overflow: int = 5
    pool_timeout_s: float = 5.0
    connect_timeout_s: float = 5.0
    statement_timeout_s: float = 5.0
    lock_timeout_s: float = 3.0
    idle_in_transaction_timeout_s: float = 10.0
    application_name: str = "evenflow"


class Database:
    """A pool of connections to one Postgres database, opened on first use."""

    def __init__(self, url: str, options: DatabaseOptions | None = None) -> None:
        self._options = options or DatabaseOptions()
        self._dsn = normalize_url(url)
        self._engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=self.connect,
            pool_size=self._options.pool_size,
            max_overflow=self._options.max_overflow,
            pool_timeout=self._options.pool_timeout_s,
            pool_pre_ping=True,
        )
        self._sessions = async_sessionmaker(self._engine, expire_on_commit=False)

    @asynccontextmanager
    async def session(self) -> abc.AsyncIterator[AsyncSession]:
        """One transaction: committed where the block ends, rolled back where it raises.

        Raises DatabaseUnavailableError, InvalidValueError.
        """
        async with translated_errors(), self._sessions.begin() as session:
            yield session

    @asynccontextmanager
    async def connection(self) -> abc.AsyncIterator[AsyncConnection]:
        """One transaction on a bare connection, for migrations."""
        async with translated_errors(), self._engine.begin() as connection:
            yield connection

    async def connect(self) -> "asyncpg.Connection[asyncpg.Record]":
        """A new connection outside the pool, which the caller closes; LISTEN needs one of its own."""
        options = self._options
        return await asyncpg.connect(
            self._dsn,
            timeout=options.connect_timeout_s,
            # The server's own timeout strikes first; this one ends the wait where the server is gone.
            command_timeout=options.statement_timeout_s + options.connect_timeout_s,
            server_settings={
                "application_name": options.application_name,
                "statement_timeout": str(round(options.statement_timeout_s * 1000)),
                "lock_timeout": str(round(options.lock_timeout_s * 1000)),
                # A process that stalls inside a change would hold up everybody else's.
                "idle_in_transaction_session_timeout": str(round(options.idle_in_transaction_timeout_s * 1000)),
                "timezone": "UTC",
            },
        )

    @asynccontextmanager
    async def listener(self, channel: str, on_notice: abc.Callable[[], None]) -> abc.AsyncIterator[asyncio.Event]:
        """A connection of its own that calls `on_notice` at each notice; yields the event of its loss.

        Raises DatabaseUnavailableError.
        """
        closed = asyncio.Event()
        async with translated_errors():
            connection = await self.connect()
        try:
            connection.add_termination_listener(lambda _: closed.set())
            async with translated_errors():
                await connection.add_listener(channel, lambda *_: on_notice())
            yield closed
        finally:
            connection.terminate()

    async def ping(self) -> None:
        """The server answers and is new enough. Raises DatabaseUnavailableError, UnsupportedServerError."""
        async with self.session() as session:
            number = (await session.execute(text("SELECT current_setting('server_version_num')::int"))).scalar_one()
        require_supported(number)

    def pool(self) -> PoolReport:
        """Its connections now."""
        pool = self._engine.pool
        assert isinstance(pool, QueuePool), "the kind that create_async_engine makes"
        most = self._options.pool_size + self._options.max_overflow
        return PoolReport(pool.checkedout(), pool.checkedin(), most)

    async def close(self) -> None:
        """Every connection is closed."""
        await self._engine.dispose()


def normalize_url(url: str) -> str:
    """The URL in the form that asyncpg takes. Raises DatabaseUrlError, whose message holds no password."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        raise DatabaseUrlError("the database URL must begin with postgresql://")
    if not urlsplit(url).path.strip("/"):
        raise DatabaseUrlError("the database URL names no database (postgresql://user@host/DATABASE)")
    return f"postgresql://{rest}"


def require_supported(server_version_num: int) -> None:
    """Raises UnsupportedServerError if the server (`server_version_num`, 150004 for 15.4) is too old."""
    major = server_version_num // 10_000
    if major < MINIMUM_SERVER_VERSION:
        raise UnsupportedServerError(major, MINIMUM_SERVER_VERSION)


@asynccontextmanager
async def translated_errors() -> abc.AsyncIterator[None]:
    """Driver and pool errors leave as store errors; a bug of ours (a bad statement) leaves as it is.

    A server refuses statements that are right for more reasons than can be listed: it is read-only after a failover,
    has an error on its disk, lost a right. Whatever is not said of the statement or its values is unavailability.
    """
    try:
        yield
    except _CONNECTING_ERRORS as error:
        # From a connection that is just being made; what a statement meets arrives as a DBAPIError.
        raise DatabaseUnavailableError(_reason(error)) from error
    except IntegrityError as error:
        raise InvalidValueError(violated_constraint(error) or "row", "refused by the schema") from error
    except DBAPIError as error:
        state = _sqlstate(error)
        if state.startswith(_DATA_EXCEPTION):
            # Which of the statement's values it is, the server does not say.
            raise InvalidValueError("", "a text has a NUL character, or a number is out of range") from error
        if state in _TOOK_TOO_LONG:
            raise StatementTimeoutError(_reason(error)) from error
        is_bug = not state or (state.startswith(_OUR_BUG) and state != _NO_RIGHT)
        if is_bug and not error.connection_invalidated:
            raise
        raise DatabaseUnavailableError(_reason(error)) from error


def violated_constraint(error: SQLAlchemyError) -> str | None:
    """The name of the constraint that refused a row, as the schema spells it."""
    cause = getattr(error, "orig", None)
    driver_error = getattr(cause, "__cause__", None)
    name = getattr(driver_error, "constraint_name", None)
    return name if isinstance(name, str) else None


def _reason(error: BaseException) -> str:
    """The driver's own words, without the statement that SQLAlchemy adds to them."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        error = error.orig.__cause__ or error.orig
    return f"the database cannot be used: {str(error) or type(error).__name__}"


def _sqlstate(error: DBAPIError) -> str:
    state = getattr(error.orig, "sqlstate", None)
    return state if isinstance(state, str) else ""
