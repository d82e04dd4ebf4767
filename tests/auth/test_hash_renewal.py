"""A new pepper over a real database: keys work throughout, and their hashes are renewed by use, on record."""

from pathlib import Path

import pytest
from sqlalchemy import text

from gateway import api_key
from gateway.auth import Authenticator, LastUsed
from gateway.bootstrap import add_pepper
from gateway.pepper import Peppers, PepperSource
from gateway.private_files import PrivateFileError
from gateway.store import migrate
from gateway.store.audit import verify_chain
from gateway.store.audit_chain import ChainIntact
from gateway.store.cache import TenancyCache
from gateway.store.db import Database
from gateway.store.key_hashes import HashRenewal, renew_hashes
from gateway.store.keys import create_key, get_key
from gateway.store.records import ApiKey, ApiKeySettings, KeySecret, ResourcePath
from tests.auth.test_pepper import BOTH, NEW, OLD
from tests.store.tenants import make_change, make_organization, make_team


async def make_key(database: Database) -> tuple[api_key.GeneratedKey, ApiKey]:
    """A key that was hashed with the old pepper."""
    team = await make_team(database, await make_organization(database))
    key = api_key.generate()
    path = ResourcePath(team.path.organization, team.path.team, key.public_id)
    secret = KeySecret(api_key.digest(OLD, key.secret), 1)
    return key, await create_key(database, make_change(), path, ApiKeySettings(), secret)


async def test_use_renews_the_hash_and_a_gateway_without_the_old_pepper_takes_the_key(database: Database) -> None:
    key, made = await make_key(database)
    cache, last_used = TenancyCache(database), LastUsed(database)
    await cache.refresh()
    between = Authenticator(cache, PepperSource(Peppers.parse(BOTH)), last_used)
    await between.authenticate([f"Bearer {key.text}"], "unix:")
    await last_used.flush()
    revision = cache.current.revision
    await cache.refresh()

    (stored,) = (await get_key(database, made.path)).secrets
    assert (stored.digest, stored.pepper_version) == (api_key.digest(NEW, key.secret), 2)
    assert cache.current.revision == revision + 1
    after = Authenticator(cache, b"2:" + NEW, last_used)
    assert await after.authenticate([f"Bearer {key.text}"], "unix:")
    # Used again, it has nothing left to renew.
    await between.authenticate([f"Bearer {key.text}"], "unix:")
    await last_used.flush()
    assert (await cache.refresh()).revision == revision + 1
    assert isinstance(await verify_chain(database), ChainIntact)


async def test_a_secret_that_was_rotated_out_meanwhile_stays_out(database: Database) -> None:
    key, made = await make_key(database)
    async with database.session() as session:
        await session.execute(text("DELETE FROM api_key_secret"))
    renewal = HashRenewal(made.id, api_key.digest(OLD, key.secret), KeySecret(api_key.digest(NEW, key.secret), 2))

    assert await renew_hashes(database, [renewal]) == 0
    assert (await get_key(database, made.path)).secrets == ()


def test_a_version_is_added_to_the_file(tmp_path: Path) -> None:
    with pytest.raises(PrivateFileError):
        add_pepper(tmp_path)
    (tmp_path / "pepper").write_bytes(OLD)

    assert add_pepper(tmp_path) == 2
    peppers = Peppers.parse((tmp_path / "pepper").read_bytes())
    assert peppers.by_version[1] == OLD
    assert (tmp_path / "pepper").stat().st_mode & 0o777 == 0o600


async def test_going_back_a_release_takes_away_what_it_does_not_know(database: Database, database_url: str) -> None:
    _, plain = await make_key(database)
    _, administrator = await make_key(database)
    async with database.session() as session:
        await session.execute(
            text("UPDATE api_key SET scopes = ARRAY['inference', 'admin.keys'] WHERE id = :id"), {"id": plain.id}
        )
        await session.execute(
            text("UPDATE api_key SET scopes = ARRAY['admin.keys'] WHERE id = :id"), {"id": administrator.id}
        )

    await migrate.downgrade(database_url, "0008_ledger_rollups")
    await migrate.upgrade(database_url)

    assert (await get_key(database, plain.path)).settings.scopes == ("inference",)
    assert (await get_key(database, plain.path)).revoked_at is None
    assert (await get_key(database, administrator.path)).revoked_at is not None
