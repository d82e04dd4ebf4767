"""The first start and the next ones: what is made, kept, made again, and refused."""

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway import api_key
from gateway.bootstrap import bootstrap
from gateway.errors import SettingsError
from gateway.pepper import Peppers
from gateway.private_files import PrivateFileError
from gateway.settings import load_settings, read_pepper
from gateway.store.changes import Change
from gateway.store.db import Database
from gateway.store.enums import KeyScope
from gateway.store.key_ends import Rotation, revoke_key, rotate_key
from gateway.store.keys import create_key, get_key
from gateway.store.records import ApiKeySettings, KeySecret, ResourcePath
from tests.cli.command_line import CommandLine


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def contents(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir()}


async def test_first_start_makes_schema_pepper_and_key(empty_database_url: str, tmp_path: Path):
    data_dir = tmp_path / "data"

    installation = await bootstrap(data_dir, empty_database_url)

    assert installation.has_new_admin_key
    assert (mode(data_dir), mode(data_dir / "pepper"), mode(installation.admin_key_file)) == (0o700, 0o600, 0o600)
    assert api_key.parse(installation.admin_key_file.read_text().strip()) is not None


async def test_next_start_keeps_everything(database_url: str, tmp_path: Path):
    await bootstrap(tmp_path, database_url)
    before = contents(tmp_path)

    installation = await bootstrap(tmp_path, database_url)

    assert not installation.has_new_admin_key
    assert contents(tmp_path) == before


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("ef_live_nonsense")])
async def test_lost_or_damaged_key_is_replaced(database_url: str, tmp_path: Path, damage):
    installation = await bootstrap(tmp_path, database_url)
    old = installation.admin_key_file.read_text()
    damage(installation.admin_key_file)

    again = await bootstrap(tmp_path, database_url)

    assert again.has_new_admin_key
    assert again.admin_key_file.read_text() != old


async def test_revoked_key_is_replaced(database: Database, database_url: str, tmp_path: Path):
    installation = await bootstrap(tmp_path, database_url)
    public_id = api_key.parse(installation.admin_key_file.read_text().strip()).public_id
    # Another administrator's: the last one cannot be revoked.
    await bootstrap(tmp_path / "other", database_url, (tmp_path / "pepper").read_bytes().strip())
    await revoke_key(database, Change("test"), ResourcePath(None, None, public_id), "lost")

    again = await bootstrap(tmp_path, database_url)

    assert again.has_new_admin_key
    assert (await get_key(database, ResourcePath(None, None, public_id))).revoked_at is not None


async def test_secret_whose_grace_time_is_over_is_replaced(database: Database, database_url: str, tmp_path: Path):
    installation = await bootstrap(tmp_path, database_url)
    public_id = api_key.parse(installation.admin_key_file.read_text().strip()).public_id
    rotation = Rotation(KeySecret(bytes(32), 1), timedelta(hours=1))
    await rotate_key(database, Change("test"), ResourcePath(None, None, public_id), rotation)
    assert not (await bootstrap(tmp_path, database_url)).has_new_admin_key

    async with database.session() as session:
        await session.execute(text("UPDATE api_key_secret SET not_after = now() WHERE not_after IS NOT NULL"))

    assert (await bootstrap(tmp_path, database_url)).has_new_admin_key


@pytest.mark.parametrize(
    "settings",
    [
        ApiKeySettings(scopes=(KeyScope.ADMIN,), expires_at=datetime(2026, 1, 1, tzinfo=UTC)),
        ApiKeySettings(scopes=(KeyScope.ADMIN_READ,)),
    ],
)
async def test_key_that_cannot_administrate_is_replaced(
    database: Database, database_url: str, tmp_path: Path, settings: ApiKeySettings
):
    installation = await bootstrap(tmp_path, database_url)
    peppers, key = Peppers.parse((tmp_path / "pepper").read_bytes()), api_key.generate()
    secret = KeySecret(peppers.digest(key.secret), peppers.version)
    await create_key(database, Change("test"), ResourcePath(None, None, key.public_id), settings, secret)
    installation.admin_key_file.write_text(key.text)

    assert (await bootstrap(tmp_path, database_url)).has_new_admin_key


async def test_lost_pepper_is_not_replaced_while_keys_depend_on_it(database_url: str, tmp_path: Path):
    await bootstrap(tmp_path, database_url)
    (tmp_path / "pepper").unlink()

    with pytest.raises(PrivateFileError, match="pepper is missing"):
        await bootstrap(tmp_path, database_url)

    assert not (tmp_path / "pepper").exists()


async def test_given_pepper_needs_no_file(database_url: str, tmp_path: Path):
    first = await bootstrap(tmp_path, database_url, b"0123456789abcdef")
    second = await bootstrap(tmp_path, database_url, b"0123456789abcdef")

    assert first.has_new_admin_key
    assert not second.has_new_admin_key
    assert not (tmp_path / "pepper").exists()


async def test_pepper_file_too_short_to_keep_a_secret_is_refused(database_url: str, tmp_path: Path):
    (tmp_path / "pepper").write_text("short\n")

    with pytest.raises(SettingsError, match=r"pepper holds fewer than 16 bytes"):
        await bootstrap(tmp_path, database_url)

    assert contents(tmp_path) == {"pepper": "short\n"}


async def test_key_made_under_the_variable_is_one_that_the_gateway_accepts(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("EVENFLOW_PEPPER", " 0123456789abcdef\n")

    ran = await CommandLine()("bootstrap", "--database-url", database_url, "--data-dir", str(tmp_path))

    assert ran.exit_code == 0
    key = api_key.parse((tmp_path / "admin.key").read_text().strip())
    (stored,) = (await get_key(database, ResourcePath(None, None, key.public_id))).secrets
    pepper = read_pepper(load_settings(engine="unix:/e.sock", database_url=database_url))
    assert api_key.is_match(pepper, key.secret, stored.digest)
