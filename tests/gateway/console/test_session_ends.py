"""Signing out: the session is over for whoever has a copy of its cookie, at every gateway."""

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.auth.remembered import RememberedKey
from gateway.console.sign_in import session_ends
from gateway.console.sign_in.session_ends import SessionEndedError, SessionEnds
from gateway.console.sign_in.sessions import Session
from gateway.store.db import Database
from tests.gateway.console.test_live_pages import events
from tests.gateway.console.visitors import Visitor, Visitors
from tests.gateway.postgres_proxy import PostgresProxy
from tests.gateway.world import World

NOW = datetime.now(UTC)
KEY = RememberedKey("0123456789Ab", NOW, None)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database is up, however busy the machine is."""
    monkeypatch.setattr(session_ends, "PATIENCE_S", 60.0)


def session(name: str, expires_at: datetime = NOW + timedelta(hours=1)) -> Session:
    return Session(name, KEY, expires_at)


def with_cookie_of(visitors: Visitors, robbed: Visitor) -> Visitor:
    """Somebody who has copied the cookie."""
    thief = visitors.somebody()
    thief.client.cookies.set("evenflow_session", robbed.client.cookies["evenflow_session"])
    return thief


async def is_in(visitor: Visitor) -> bool:
    return (await visitor.get("/console/tenants")).url.path == "/console/tenants"


@pytest.mark.usefixtures("patient")
async def test_signing_out_ends_the_session_for_a_copied_cookie_at_every_gateway(
    world: World, second_world: World, visitors: Visitors
):
    admin = await world.administrator()
    await second_world.cache.refresh()
    elsewhere = Visitors(second_world)
    ada, other_browser = await visitors.signed_in(admin.key), await visitors.signed_in(admin.key)
    thieves = [with_cookie_of(visitors, ada), with_cookie_of(elsewhere, ada)]
    assert [await is_in(thief) for thief in thieves] == [True, True]

    await ada.send("/console/logout")

    assert [await is_in(thief) for thief in thieves] == [False, False]
    assert await is_in(other_browser)
    await elsewhere.close()


@pytest.mark.usefixtures("patient")
async def test_pages_that_keep_themselves_up_to_date_end_with_the_session(visitors: Visitors):
    ada = await visitors.administrator()
    told = []

    async with ada.client.stream("GET", "/console/live/overview") as response:
        async for name, data in events(response):
            if not told:
                await ada.send("/console/logout")
            told.append((name, data))

    assert told[-1] == ("end", "you have signed out of this session")


async def test_while_the_database_is_away_nobody_is_signed_out_but_those_who_did(database_url: str):
    with tempfile.TemporaryDirectory() as directory:  # a socket's path must be short
        proxy = PostgresProxy(database_url, Path(directory))
        await proxy.open()
        database, other = Database(proxy.url), Database(database_url)
        here, elsewhere = SessionEnds(database), SessionEnds(other)
        await here.require_open(session("one"))

        await proxy.shut()
        await here.end(session("one"))
        with pytest.raises(SessionEndedError):
            await here.require_open(session("one"))
        await here.require_open(session("two"))
        await elsewhere.require_open(session("one"))

        await proxy.open()
        await here.require_open(session("two"))
        with pytest.raises(SessionEndedError):
            await elsewhere.require_open(session("one"))
        await database.close()
        await other.close()
        await proxy.shut()


@pytest.mark.usefixtures("patient")
async def test_what_would_have_expired_anyway_is_forgotten(database: Database):
    ends = SessionEnds(database)

    await ends.end(session("old", NOW - timedelta(hours=1)))
    await ends.end(session("new"))
    await ends.end(session("new"))

    async with database.session() as connection:
        found = await connection.execute(text("SELECT session_id FROM console_session_end"))
        assert found.scalars().all() == ["new"]


@pytest.mark.usefixtures("patient")
async def test_what_has_expired_is_forgotten_though_nobody_signs_out_any_more(database: Database):
    ends = SessionEnds(database)
    await ends.end(session("old", NOW - timedelta(hours=1)))

    await ends.require_open(session("new"))

    assert not ends._known
    assert not ends._unwritten
