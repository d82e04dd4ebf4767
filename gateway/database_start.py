"""The database as a gateway finds it when it starts: there and of this release, or away for now."""

import structlog

from gateway.errors import SettingsError
from gateway.settings import GatewaySettings
from gateway.store.db import Database
from gateway.store.errors import (
    DatabaseUnavailableError,
    DatabaseUrlError,
    SchemaVersionError,
    UnsupportedServerError,
)
from gateway.store.migrate import require_head

log = structlog.get_logger()


def open_database(settings: GatewaySettings) -> Database:
    """Not connected yet. Raises SettingsError."""
    try:
        return Database(settings.database_url.get_secret_value())
    except DatabaseUrlError as error:
        raise SettingsError(f"database_url: {error}") from error


async def check_database(database: Database) -> None:
    """Raises SettingsError if it answers and is not one that this release works with."""
    try:
        await database.ping()
        await require_head(database)
    except (SchemaVersionError, UnsupportedServerError) as error:
        raise SettingsError(f"database_url: {error}") from error
    except DatabaseUnavailableError:
        log.warning("the database does not answer yet")
