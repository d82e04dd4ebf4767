"""What administrators can do to organizations, teams, keys and quota policies, and what they cannot."""

from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_network
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from gateway import api_key
from gateway.store.db import Database
from gateway.store.enums import KeyScope, State
from gateway.store.errors import AlreadyExistsError, InvalidValueError, NotFoundError, StoreConflictError
from gateway.store.key_ends import revoke_key
from gateway.store.keys import create_key, get_key, list_keys, touch_last_used, update_key
from gateway.store.organizations import get_organization, list_organizations
from gateway.store.records import (
    ApiKeySettings,
    Page,
    ResourcePath,
    TeamSettings,
)
from gateway.store.teams import create_team, get_team, list_teams, update_team
from tests.store.tenants import make_change, make_key, make_organization, make_secret, make_team

FULL_KEY = ApiKeySettings(
    display_name="ci",
    scopes=(KeyScope.INFERENCE,),
    model_grants=("small", "large"),
    class_grants=("batch",),
    ip_cidrs=(ip_network("10.0.0.0/8"), ip_network("2001:db8::/32")),
    expires_at=datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC),
)


async def test_what_was_created_is_what_is_read(database: Database) -> None:
    organization = await make_organization(database)
    team_settings = TeamSettings("Search", State.SUSPENDED, "batch", ("priority", "batch"))
    team = await make_team(database, organization, settings=team_settings)
    key = await make_key(database, team, FULL_KEY)

    assert await get_organization(database, organization.path) == organization
    assert await get_team(database, team.path) == team
    assert await get_key(database, key.path) == key
    assert (team.settings, key.settings) == (team_settings, FULL_KEY)
    assert (key.revoked_at, key.revoke_reason, key.last_used_at) == (None, None, None)


async def test_unknown_names_are_not_found_by_name(database: Database) -> None:
    organization = await make_organization(database, "acme")
    team = await make_team(database, organization, "search")
    missing = [
        (get_organization, ResourcePath("nobody"), "organizations/nobody"),
        (get_team, ResourcePath("nobody", "search"), "organizations/nobody/teams/search"),
        (get_team, ResourcePath("acme", "nobody"), "organizations/acme/teams/nobody"),
        (get_key, replace(team.path, api_key="0" * 12), f"organizations/acme/teams/search/apiKeys/{'0' * 12}"),
        (get_key, ResourcePath(None, None, "0" * 12), f"apiKeys/{'0' * 12}"),
    ]
    for read, path, name in missing:
        with pytest.raises(NotFoundError) as refusal:
            await read(database, path)
        assert refusal.value.resource == name


async def test_a_key_is_not_found_under_another_team(database: Database) -> None:
    organization = await make_organization(database)
    team, other = await make_team(database, organization), await make_team(database, organization)
    key = await make_key(database, team)
    stranger = await make_team(database, await make_organization(database))

    for path in (other.path, stranger.path, ResourcePath(None)):
        with pytest.raises(NotFoundError):
            await get_key(database, replace(path, api_key=key.path.api_key))
        with pytest.raises(NotFoundError):
            await revoke_key(database, make_change(), replace(path, api_key=key.path.api_key), "stolen")


async def test_pages_cover_everything_once_in_order_of_creation(database: Database) -> None:
    organization = await make_organization(database)
    teams = [await make_team(database, organization) for _ in range(7)]
    await make_team(database, await make_organization(database))

    seen, after = [], None
    while page := await list_teams(database, organization.path, Page(3, after)):
        seen.append([team.id for team in page])
        after = page[-1].id

    assert [len(page) for page in seen] == [3, 3, 1]
    assert [team_id for page in seen for team_id in page] == [team.id for team in teams]


async def test_lists_stay_below_their_parent_and_a_dash_is_any(database: Database) -> None:
    acme, zeta = await make_organization(database, "acme"), await make_organization(database, "zeta")
    search, ads = await make_team(database, acme, "search"), await make_team(database, acme, "ads")
    zeta_search = await make_team(database, zeta, "search")
    keys = {name: await make_key(database, team) for name, team in (("s", search), ("a", ads), ("z", zeta_search))}
    await create_key(
        database, make_change(), ResourcePath(None, None, "platform0000"), _admin_settings(), make_secret()
    )

    async def key_ids(parent: ResourcePath) -> list[UUID]:
        return [key.id for key in await list_keys(database, parent, Page(10))]

    assert await key_ids(ResourcePath("acme", "search")) == [keys["s"].id]
    assert await key_ids(ResourcePath("acme", "-")) == [keys["s"].id, keys["a"].id]
    assert await key_ids(ResourcePath("-", "search")) == [keys["s"].id, keys["z"].id]
    assert await key_ids(ResourcePath("-", "-")) == [keys["s"].id, keys["a"].id, keys["z"].id]
    assert await list_teams(database, ResourcePath("-"), Page(10)) == [search, ads, zeta_search]
    assert await list_organizations(database, Page(10)) == [acme, zeta]
    for parent in (ResourcePath("nobody", "search"), ResourcePath("acme", "nobody"), ResourcePath("nobody", "-")):
        with pytest.raises(NotFoundError):
            await list_keys(database, parent, Page(10))
    with pytest.raises(NotFoundError):
        await list_teams(database, ResourcePath("nobody"), Page(10))


async def test_a_team_keeps_its_salt_and_other_teams_have_others(database: Database) -> None:
    organization = await make_organization(database)
    await make_team(database, organization)
    await make_team(database, organization)
    salts = await _cache_salts(database)

    for team in await list_teams(database, organization.path, Page(10)):
        await update_team(database, make_change(), team.path, lambda old: replace(old, display_name="renamed"))

    assert await _cache_salts(database) == salts
    assert len(set(salts)) == 2


async def test_a_team_is_found_by_its_slug_in_its_own_organization_only(database: Database) -> None:
    acme, zeta = await make_organization(database), await make_organization(database)
    team = await make_team(database, acme, "search")
    assert (await make_team(database, zeta, "search")).id != team.id

    with pytest.raises(AlreadyExistsError) as refusal:
        await make_team(database, acme, "search")
    assert refusal.value.resource == team.path.name
    with pytest.raises(NotFoundError):
        await create_team(database, make_change(), ResourcePath("nobody", "search"), TeamSettings())


async def test_a_key_may_ask_for_no_class_that_its_team_lacks(database: Database) -> None:
    team = await make_team(database, await make_organization(database), settings=TeamSettings(class_grants=("batch",)))
    key = await make_key(database, team, ApiKeySettings(class_grants=("batch", "default")))

    with pytest.raises(InvalidValueError, match="the team has no grant of the class 'priority'"):
        await make_key(database, team, ApiKeySettings(class_grants=("priority",)))
    with pytest.raises(InvalidValueError, match="there is no priority class 'urgent'"):
        await update_key(database, make_change(), key.path, lambda old: replace(old, class_grants=("urgent",)))


async def test_a_key_whose_team_lost_a_class_can_still_be_edited(database: Database) -> None:
    team = await make_team(database, await make_organization(database), settings=TeamSettings(class_grants=("batch",)))
    key = await make_key(database, team, ApiKeySettings(class_grants=("batch",)))
    await update_team(database, make_change(), team.path, lambda old: replace(old, class_grants=()))

    renamed = await update_key(database, make_change(), key.path, lambda old: replace(old, display_name="renamed"))

    assert renamed.settings == replace(key.settings, display_name="renamed")


async def test_a_retried_key_creation_returns_the_first_key(database: Database) -> None:
    team = await make_team(database, await make_organization(database))
    change = make_change(uuid4(), b"fingerprint")
    first, second = api_key.generate(), api_key.generate()

    made = await create_key(
        database, change, replace(team.path, api_key=first.public_id), ApiKeySettings(), make_secret(first)
    )
    again = await create_key(
        database, change, replace(team.path, api_key=second.public_id), ApiKeySettings(), make_secret(second)
    )

    assert again == made
    assert again.path.api_key == first.public_id
    assert len(await list_keys(database, team.path, Page(10))) == 1


async def test_revoking_is_final_and_keeps_the_first_reason(database: Database) -> None:
    key = await make_key(database, await make_team(database, await make_organization(database)))

    revoked = await revoke_key(database, make_change(etag=key.etag), key.path, "leaked")
    again = await revoke_key(database, make_change(etag=key.etag), key.path, "again")

    assert again == revoked == await get_key(database, key.path)
    assert revoked.revoke_reason == "leaked"
    assert revoked.revoked_at is not None


async def test_an_outdated_etag_does_not_revoke(database: Database) -> None:
    outdated = await make_key(database, await make_team(database, await make_organization(database)))
    current = await update_key(database, make_change(), outdated.path, lambda old: replace(old, display_name="new"))

    with pytest.raises(StoreConflictError):
        await revoke_key(database, make_change(etag=outdated.etag), outdated.path, "leaked")

    assert await get_key(database, outdated.path) == current


async def test_platform_keys_can_be_revoked(database: Database) -> None:
    path = ResourcePath(None, None, "platform0000")
    successor = ResourcePath(None, None, "platform0001")
    for key in (path, successor):
        await create_key(database, make_change(), key, _admin_settings(), make_secret())

    assert (await revoke_key(database, make_change(), path, "rotated")).revoked_at is not None


async def test_last_use_is_noted_without_a_new_revision(database: Database) -> None:
    team = await make_team(database, await make_organization(database))
    used, unused = await make_key(database, team), await make_key(database, team)

    moment = datetime(2026, 11, 30, 12, tzinfo=UTC)
    await touch_last_used(database, {used.id: moment, uuid4(): moment})

    read = await get_key(database, used.path)
    assert read.last_used_at == moment
    assert replace(read, last_used_at=None) == used
    assert await get_key(database, unused.path) == unused


async def test_the_latest_use_of_all_that_gateways_tell_counts(database: Database) -> None:
    team = await make_team(database, await make_organization(database))
    first, second = await make_key(database, team), await make_key(database, team)
    early, late = datetime(2026, 11, 30, 12, tzinfo=UTC), datetime(2026, 11, 30, 13, tzinfo=UTC)

    await touch_last_used(database, {first.id: late, second.id: early})
    await touch_last_used(database, {first.id: early, second.id: late})

    assert [(await get_key(database, key.path)).last_used_at for key in (first, second)] == [late, late]


async def test_text_that_postgres_cannot_hold_is_an_invalid_value(database: Database) -> None:
    organization = await make_organization(database)

    with pytest.raises(InvalidValueError):
        await make_team(database, organization, settings=TeamSettings(display_name="nul \0"))


def _admin_settings() -> ApiKeySettings:
    return ApiKeySettings(scopes=(KeyScope.ADMIN,))


async def _cache_salts(database: Database) -> list[bytes]:
    async with database.session() as session:
        return list((await session.scalars(text("SELECT cache_salt FROM team ORDER BY id"))).all())
