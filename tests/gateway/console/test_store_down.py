"""The console while Postgres is away: it says so, signs nobody out, and goes on when Postgres is back."""

import tempfile
from pathlib import Path

from tests.gateway.console.visitors import Visitors, texts
from tests.gateway.postgres_proxy import PostgresProxy
from tests.gateway.world import World


async def test_a_page_says_that_the_database_is_away_and_the_session_outlives_it(closed_world: World):
    with tempfile.TemporaryDirectory() as directory:  # a socket's path must be short
        proxy = PostgresProxy(closed_world.database_url, Path(directory))
        await proxy.open()
        closed_world.database_url = proxy.url
        await closed_world.open()
        await closed_world.serving()
        visitors = Visitors(closed_world)
        ada = await visitors.administrator()

        await proxy.shut()
        away, changed = await ada.get("/console/tenants"), await ada.send("/console/tenants/-/new", {"id": "acme"})
        await proxy.open()
        back = await ada.get("/console/tenants")
        await visitors.close()
        await closed_world.close()
        await proxy.shut()

    assert (away.status_code, changed.status_code, back.status_code) == (503, 503, 200)
    assert "STORE_UNAVAILABLE" in texts(away)
    assert "<nav" in away.text
    assert "acme" not in texts(back)
