"""How Alembic runs a step: on the caller's connection, one process at a time, never waiting long for a lock.

`gateway.store.migrate` gives the connection. For a new step's draft, `alembic -c migrations/alembic.ini revision
--autogenerate -m "..."` compares the models with the database of EVENFLOW_DATABASE_URL.
"""

import asyncio
import os

from alembic import context
from sqlalchemy import Connection, text

from gateway.store.db import Database
from gateway.store.migrate import include_name, metadata

ADVISORY_LOCK = 0x65766E66  # "evnf": any number that no other user of the database takes
# Waiting for another process's migration may take as long as that migration.
TIMEOUTS = ("SET LOCAL lock_timeout = '60s'", "SET LOCAL statement_timeout = '300s'")
# A step that waits for a lock makes every later query of that table wait behind it.
LOCK_TIMEOUT = "SET LOCAL lock_timeout = '4s'"


def run_migrations(connection: Connection) -> None:
    for statement in TIMEOUTS:
        connection.execute(text(statement))
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": ADVISORY_LOCK})
    connection.execute(text(LOCK_TIMEOUT))
    context.configure(
        connection=connection,
        target_metadata=metadata(),
        include_name=include_name,
        compare_server_default=True,
    )
    with context.begin_transaction():
        context.run_migrations()


async def run_on_own_connection() -> None:
    database = Database(os.environ["EVENFLOW_DATABASE_URL"])
    async with database.connection() as connection:
        await connection.run_sync(run_migrations)
    await database.close()


given = context.config.attributes.get("connection")
if given is None:
    asyncio.run(run_on_own_connection())
else:
    run_migrations(given)
