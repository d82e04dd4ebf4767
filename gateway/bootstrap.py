"""What has to exist before a gateway can serve: the schema, the pepper and one platform administrator's key.

Runs at every start: each step looks first and changes nothing that works. An `admin.key` that is lost or does not work
any more is replaced by a new key; a lost one stays valid until it is revoked. A lost `pepper` is what all keys were
hashed with: a new one is made only while there are no keys.
"""

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gateway import api_key
from gateway.pepper import Peppers
from gateway.private_files import (
    ADMIN_KEY_FILE,
    PEPPER_FILE,
    PrivateFileError,
    make_private_dir,
    read_text,
    write_private,
)
from gateway.settings import PEPPER_VARIABLE, read_pepper_file
from gateway.store.cache import TenancyCache
from gateway.store.changes import Change
from gateway.store.db import Database
from gateway.store.enums import KeyScope
from gateway.store.errors import NotFoundError
from gateway.store.keys import create_key, get_key
from gateway.store.migrate import upgrade
from gateway.store.records import ApiKeySettings, KeySecret, ResourcePath

ACTOR = "bootstrap"
PEPPER_BYTES = 32


@dataclass(frozen=True, slots=True)
class Installation:
    """`has_new_admin_key`: the file was made, or made again, now."""

    admin_key_file: Path
    has_new_admin_key: bool


async def bootstrap(data_dir: Path, database_url: str, pepper: bytes | None = None) -> Installation:
    """The database has this release's schema, and `data_dir` holds the key of an administrator, who can use it now.

    `pepper` is used in place of the file `pepper`. Raises PrivateFileError, SettingsError, StoreError.
    """
    make_private_dir(data_dir)
    await upgrade(database_url)
    database = Database(database_url)
    try:
        if pepper is None:
            pepper = await _ensure_pepper(database, data_dir / PEPPER_FILE)
        path = data_dir / ADMIN_KEY_FILE
        is_valid = await _is_valid(database, pepper, path)
        if not is_valid:
            write_private(path, await _create_admin_key(database, pepper) + "\n")
        return Installation(path, has_new_admin_key=not is_valid)
    finally:
        await database.close()


def add_pepper(data_dir: Path) -> int:
    """The file `pepper` has one more version, which hashes from the next start on. Returns its number.

    Keys keep working: each is hashed anew when it is used. Raises PrivateFileError, SettingsError.
    """
    path = data_dir / PEPPER_FILE
    kept = read_pepper_file(path)
    if kept is None:
        raise PrivateFileError(f"there is no {path} to add a version to")
    text = Peppers.parse(kept).with_new(secrets.token_hex(PEPPER_BYTES).encode())
    write_private(path, text.decode())
    return Peppers.parse(text).version


async def _ensure_pepper(database: Database, path: Path) -> bytes:
    kept = read_pepper_file(path)
    if kept is not None:
        return kept
    tenancy = TenancyCache(database)
    await tenancy.refresh()
    if tenancy.current.keys:
        raise PrivateFileError(
            f"{path} is missing, and without it none of the database's API keys can be checked:"
            f" restore it, or set {PEPPER_VARIABLE} to what it held"
        )
    # Text, so that it can be copied into an environment variable.
    pepper = secrets.token_hex(PEPPER_BYTES)
    write_private(path, pepper + "\n")
    return pepper.encode()


async def _is_valid(database: Database, pepper: bytes, path: Path) -> bool:
    """Whether the key in `path` is an administrator's that can be used, and so is the secret of it that is there."""
    key = api_key.parse(read_text(path))
    if key is None:
        return False
    try:
        record = await get_key(database, ResourcePath(None, None, key.public_id))
    except NotFoundError:
        return False
    peppers, now = Peppers.parse(pepper), datetime.now(UTC)
    is_ended = record.revoked_at is not None or record.deleted_at is not None
    if is_ended or KeyScope.ADMIN not in record.settings.scopes or not _is_before(now, record.settings.expires_at):
        return False
    return any(
        _is_before(now, stored.not_after) and peppers.is_match(key.secret, stored.digest, stored.pepper_version)
        for stored in record.secrets
    )


def _is_before(now: datetime, end: datetime | None) -> bool:
    return end is None or now < end


async def _create_admin_key(database: Database, pepper: bytes) -> str:
    """A new key, which does not expire: it is the way back in."""
    key = api_key.generate()
    settings = ApiKeySettings(display_name="platform administrator", scopes=(KeyScope.ADMIN,), expires_at=None)
    peppers = Peppers.parse(pepper)
    secret = KeySecret(peppers.digest(key.secret), peppers.version)
    await create_key(database, Change(ACTOR), ResourcePath(None, None, key.public_id), settings, secret)
    return key.text
