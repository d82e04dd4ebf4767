"""The history of the schema: it applies, it can be undone, and it leads to what the models say."""

import asyncio
import sys

import pytest
from sqlalchemy import text

from gateway.store import migrate
from gateway.store.db import Database
from gateway.store.errors import DatabaseUnavailableError, SchemaVersionError

MIGRATION_LOCK = 0x65766E66  # that of migrations/env.py, which only Alembic can import
# Everything that makes up a table, spelled by Postgres; not who owns it, nor which step made it.
CATALOG = {
    "columns": "SELECT table_name, column_name, data_type, udt_name, is_nullable, column_default, is_identity "
    "FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'",
    "constraints": "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'alembic_version'",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes "
    "WHERE schemaname = 'public' AND tablename <> 'alembic_version'",
    "partitions": "SELECT partrelid::regclass::text, pg_get_partkeydef(partrelid) FROM pg_partitioned_table",
    "triggers": "SELECT tgrelid::regclass::text, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
    "functions": "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
}


async def read_catalog(database: Database) -> dict[str, set[tuple[object, ...]]]:
    async with database.connection() as connection:
        return {name: {tuple(row) for row in await connection.execute(text(query))} for name, query in CATALOG.items()}


async def test_models_and_migrations_describe_the_same_tables(database: Database) -> None:
    assert await migrate.find_drift(database) == []


async def test_drift_is_found(database: Database) -> None:
    async with database.connection() as connection:
        await connection.execute(text("ALTER TABLE team ADD COLUMN surprise integer"))
        await connection.execute(text("DROP INDEX ix_organization_revision"))

    drift = await migrate.find_drift(database)

    assert len(drift) == 2
    assert "surprise" in "".join(drift)
    assert "ix_organization_revision" in "".join(drift)


async def test_models_and_migrations_agree_on_every_constraint(database: Database, empty_database_url: str) -> None:
    from_models = Database(empty_database_url)
    async with from_models.connection() as connection:
        await connection.run_sync(migrate.metadata().create_all)
        await connection.execute(text("CREATE TABLE usage_event_default PARTITION OF usage_event DEFAULT"))
    expected, found = await read_catalog(from_models), await read_catalog(database)

    for part in ("columns", "constraints", "indexes", "partitions"):
        assert found[part] == expected[part]
    await from_models.close()


async def test_each_step_can_be_undone_and_done_again(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    empty = await read_catalog(database)
    await migrate.upgrade(empty_database_url)
    complete = await read_catalog(database)

    await migrate.downgrade(empty_database_url, "base")
    assert await read_catalog(database) == empty
    while await migrate.current_revision(database) != migrate.head_revision():
        await migrate.upgrade(empty_database_url, "+1")
        after = await read_catalog(database)
        await migrate.downgrade(empty_database_url, "-1")
        await migrate.upgrade(empty_database_url, "+1")
        assert await read_catalog(database) == after

    assert after == complete
    await database.close()


async def test_processes_that_start_together_migrate_once(empty_database_url: str) -> None:
    # In this process Alembic's context is one per interpreter, so the others are real processes.
    code = "import asyncio, sys; from gateway.store.migrate import upgrade; asyncio.run(upgrade(sys.argv[1]))"
    children = [await asyncio.create_subprocess_exec(sys.executable, "-c", code, empty_database_url) for _ in range(3)]

    assert await asyncio.gather(*(child.wait() for child in children)) == [0, 0, 0]

    database = Database(empty_database_url)
    await migrate.require_head(database)
    await database.close()


async def test_upgrading_again_changes_nothing(database: Database, database_url: str) -> None:
    before = await read_catalog(database)

    await migrate.upgrade(database_url)

    assert await read_catalog(database) == before


async def test_who_has_nothing_to_migrate_waits_for_nobody_who_has(database: Database, database_url: str) -> None:
    async with database.session() as session:
        await session.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
        async with asyncio.timeout(30):
            await migrate.upgrade(database_url)


async def test_a_schema_that_is_not_this_releases_is_refused(database: Database, database_url: str) -> None:
    async with database.connection() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999_future'"))

    with pytest.raises(SchemaVersionError, match="9999_future"):
        await migrate.require_head(database)
    with pytest.raises(SchemaVersionError, match="9999_future"):
        await migrate.upgrade(database_url)


async def test_an_empty_database_is_not_at_head(empty_database_url: str) -> None:
    database = Database(empty_database_url)

    assert await migrate.current_revision(database) is None
    with pytest.raises(SchemaVersionError, match="at nothing"):
        await migrate.require_head(database)
    await database.close()


async def test_migrating_an_absent_server_says_so() -> None:
    with pytest.raises(DatabaseUnavailableError):
        await migrate.upgrade("postgresql://nobody@127.0.0.1:1/none")


async def test_a_step_does_not_wait_long_for_a_lock(database: Database, database_url: str) -> None:
    """A step behind a long query would make every later query of the table wait behind it."""
    async with database.session() as session:
        await session.execute(text("LOCK TABLE usage_event IN ACCESS SHARE MODE"))
        async with asyncio.timeout(60):
            with pytest.raises(DatabaseUnavailableError):
                await migrate.downgrade(database_url, "0007_grants_and_denials")  # the next step locks the table
