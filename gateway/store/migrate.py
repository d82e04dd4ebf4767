"""Brings the schema to this release's version, and tells where it stands. The steps are the package `migrations`."""

from collections import abc
from functools import cache
from importlib.resources import files

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, MetaData

from gateway.store import (
    console_models,
    generation_models,
    identity_models,
    journal_models,
    models,
    quota_models,
    usage_models,
)
from gateway.store.base import Base
from gateway.store.db import Database, DatabaseOptions
from gateway.store.errors import SchemaVersionError

HEAD = "head"
_OPTIONS = DatabaseOptions(pool_size=1, max_overflow=0, statement_timeout_s=300.0, lock_timeout_s=60.0)
# Imported, they have told Base what they define.
_TABLES = (
    models,
    journal_models,
    identity_models,
    generation_models,
    usage_models,
    quota_models,
    console_models,
)
_PARTITION_PREFIX = f"{journal_models.UsageEventRow.__tablename__}_"


async def upgrade(url: str, revision: str = HEAD) -> None:
    """The schema is at `revision`. Processes that start together take turns; all but the first find nothing to do.

    Raises DatabaseUnavailableError, UnsupportedServerError, SchemaVersionError (the schema is a newer release's).
    """
    wanted = head_revision() if revision == HEAD else revision

    def step(config: Config) -> None:
        # A look is all that most starts need: it loads no step and waits for no lock.
        if MigrationContext.configure(config.attributes["connection"]).get_current_revision() != wanted:
            command.upgrade(config, revision)

    await _run(url, step)


async def downgrade(url: str, revision: str) -> None:
    """The schema is at the older `revision`; what later steps made is gone, with its rows. Raises as `upgrade` does."""
    await _run(url, lambda config: command.downgrade(config, revision))


async def current_revision(database: Database) -> str | None:
    """The revision that the database is at, None before the first step. Raises DatabaseUnavailableError."""
    async with database.connection() as connection:
        return await connection.run_sync(lambda sync: MigrationContext.configure(sync).get_current_revision())


@cache
def head_revision() -> str:
    """The revision that this release works with. The steps are loaded for it once."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None, "the migrations package holds at least one step"
    return head


async def require_head(database: Database) -> None:
    """Raises SchemaVersionError unless the schema is this release's."""
    current, head = await current_revision(database), head_revision()
    if current != head:
        raise SchemaVersionError(f"the database's schema is at {current or 'nothing'}, this release works with {head}")


async def find_drift(database: Database) -> list[str]:
    """How the database's tables differ from the models; CHECK constraints, triggers and partitions are not compared."""

    def compare(connection: Connection) -> list[str]:
        options = {"include_name": include_name, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        return [str(difference) for difference in compare_metadata(context, metadata())]

    async with database.connection() as connection:
        return await connection.run_sync(compare)


def metadata() -> MetaData:
    """Every table of this release."""
    return Base.metadata


def include_name(name: str | None, kind: str, parents: object) -> bool:
    """Whether a comparison looks at what the database calls `name`: partitions come and go with the days."""
    return not (kind == "table" and name is not None and name.startswith(_PARTITION_PREFIX))


async def _run(url: str, step: abc.Callable[[Config], None]) -> None:
    database = Database(url, _OPTIONS)
    try:
        await database.ping()
        async with database.connection() as connection:
            await connection.run_sync(lambda sync: step(_config(sync)))
    except CommandError as error:
        raise SchemaVersionError(f"the database's schema is not known to this release: {error}") from error
    finally:
        await database.close()


def _config(connection: Connection | None = None) -> Config:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
