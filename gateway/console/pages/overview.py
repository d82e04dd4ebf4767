"""The overview: what the engines do now, for whom, and how it went in the last minutes."""

import asyncio
from datetime import datetime
from functools import partial

from starlette.responses import Response

from gateway.auth import Action
from gateway.console.charts import Chart
from gateway.console.overview.charts import overview_charts
from gateway.console.overview.readings import bound_of
from gateway.console.overview.sampler import Reading
from gateway.console.overview.view import Overview, overview
from gateway.console.routes import ConsoleRoute
from gateway.console.visit import Visit
from gateway.console.words import team_path
from gateway.store.identity import PLATFORM


async def show(visit: Visit) -> Response:
    reading = await visit.parts.sampler.latest()
    view, charts = await _view(visit, reading), await _charts(visit, reading)
    return await visit.render("overview.html", view=view, charts=charts)


async def follow(visit: Visit) -> Response:
    drawn_at: datetime | None = None

    async def parts() -> str:
        """The figures; the charts only when there is a new point in them."""
        nonlocal drawn_at
        reading = await visit.parts.sampler.latest()
        figures = await visit.fragment("overview_now.html", view=await _view(visit, reading))
        newest = reading.history[-1].at if reading.history else None
        if newest == drawn_at:
            return figures
        drawn_at = newest
        return "".join((figures, *(chart.picture for chart in (await _charts(visit, reading)).values())))

    return visit.parts.streams.respond(visit, parts)


async def _view(visit: Visit, reading: Reading) -> Overview:
    """Made on a thread, as the charts are: with thousands of teams it takes longer than streams should have to wait."""
    team_name, sees_all = visit.verdict.snapshot.team_name, visit.may(Action.READ, PLATFORM)
    make = partial(overview, reading, team_name, partial(_sees, visit), sees_all=sees_all)
    if sees_all:
        return await visit.parts.platform_overview.of(make, reading, visit.verdict.snapshot)
    return await asyncio.to_thread(make)


async def _charts(visit: Visit, reading: Reading) -> dict[str, Chart]:
    team_name, sees_all = visit.verdict.snapshot.team_name, visit.may(Action.READ, PLATFORM)
    make = partial(
        overview_charts,
        reading.history,
        team_name,
        partial(_sees, visit),
        sees_all=sees_all,
        bound=bound_of(reading.report),
    )
    if sees_all and reading.history:
        return await visit.parts.platform_charts.of(make, reading.history[-1], visit.verdict.snapshot)
    return await asyncio.to_thread(make)


def _sees(visit: Visit, team: str) -> bool:
    """What has no name here is nobody's but the platform's."""
    path = team_path(team)
    return path is not None and visit.may(Action.READ, path)


ROUTES = (
    ConsoleRoute("GET", "/overview", Action.READ, show),
    ConsoleRoute("GET", "/live/overview", Action.READ, follow),
)
