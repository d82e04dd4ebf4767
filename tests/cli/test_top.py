"""`evenflow top` on a terminal, into a pipe, and beside a gateway that goes away."""

import asyncio
import os
import pty
import re
import sys
from collections import abc
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.command import _opened
from gateway.cli.connection import Target
from gateway.cli.data_dir import DataDir
from gateway.cli.errors import CliError, ExitCode
from gateway.cli.top.app import TopApp
from gateway.cli.top.figures import SortKey
from gateway.cli.top.polling import Away, Poller, Reported
from gateway.store.db import Database
from tests.admin.service import AdminService, serve_admin
from tests.cli.command_line import CommandLine
from tests.cli.test_top_figures import engine, status, tenant

ROOT = Path(__file__).parents[2]
UNKNOWN_KEY = f"ef_live_{'0' * 12}_{'0' * 43}_000000"
TWO_TEAMS = status(engine(tenant("batch", served_work=9, lead=0.0), tenant("search", served_work=1, lead=7.0)))


class Script:
    """What a gateway answers, one after another; the last answer for ever. Time is the test's own."""

    def __init__(self, *answers: pb.SystemStatus | Away | CliError) -> None:
        self.answers = list(answers)
        self.now_s = 100.0

    def poll(self) -> Reported | Away:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, CliError):
            raise answer
        return answer if isinstance(answer, Away) else Reported("127.0.0.1:50051", answer)


@asynccontextmanager
async def showing(script: Script, size: tuple[int, int] = (80, 24), **options):
    """The app on a terminal of that size, with the first report on it, and a report every blink of an eye."""
    options = {"interval_s": 0.1, "key": SortKey.SHARE} | options
    app = TopApp(script.poll, clock=lambda: script.now_s, **options)
    async with app.run_test(size=size) as pilot:
        for part in ("acme/", "q quit"):
            await shown(app, part)
        yield app, pilot


def screen(app: TopApp) -> list[str]:
    """The terminal's lines."""
    return [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]


async def shown(app: TopApp, text: str, *, is_there: bool = True) -> None:
    """Return when the text is on the terminal, or no longer."""
    await until(lambda: any(text in line for line in screen(app)) is is_there)


async def until(holds: abc.Callable[[], bool]) -> None:
    """Return when it does; the test's own time limit ends a wait that is in vain."""
    while not holds():  # noqa: ASYNC110 - a terminal announces nothing
        await asyncio.sleep(0.005)


def teams_on(app: TopApp) -> list[str]:
    return [line.split()[0] for line in screen(app) if line.startswith("acme/")]


async def test_overview_has_room_on_the_smallest_terminal():
    async with showing(Script(TWO_TEAMS)) as (app, _):
        lines = screen(app)

        assert len(lines) == 24
        assert max(map(len, lines)) <= 80
        for text in ("127.0.0.1:50051", "policy fair", "running", "64 of 64 blocks", "TEAM", "tokens/s", "- faster"):
            assert any(text in line for line in lines), text
        assert teams_on(app) == ["acme/batch", "acme/search"]


async def test_keys_change_the_order_of_teams():
    async with showing(Script(TWO_TEAMS)) as (app, pilot):
        for key, teams in (
            ("l", ["acme/search", "acme/batch"]),
            ("r", ["acme/batch", "acme/search"]),
            ("s", ["acme/search", "acme/batch"]),
            ("r", ["acme/batch", "acme/search"]),
            ("n", ["acme/batch", "acme/search"]),
        ):
            await pilot.press(key)
            await until(lambda teams=teams: teams_on(app) == teams)


async def test_many_teams_are_scrolled_with_the_arrows():
    teams = [tenant(f"t{number:02}", served_work=100 - number) for number in range(60)]
    async with showing(Script(status(engine(*teams)))) as (app, pilot):
        assert "acme/t00" in teams_on(app)

        await pilot.press("end")

        await shown(app, "acme/t59")
        assert "acme/t00" not in teams_on(app)
        assert any(line.startswith("TEAM") for line in screen(app))


async def test_terminal_that_grows_shows_more_columns():
    async with showing(Script(TWO_TEAMS)) as (app, pilot):
        assert not any("BLOCKS" in line for line in screen(app))

        await pilot.resize_terminal(120, 30)

        await shown(app, "BLOCKS")


async def test_gateway_that_goes_away_is_said_until_it_is_back():
    script = Script(TWO_TEAMS)
    async with showing(script) as (app, _):
        script.answers = [Away("cannot reach the gateway at [::1]:50051")]
        await shown(app, "AWAY for 0 s: cannot reach the gateway at [::1]:50051")
        script.now_s += 12
        await shown(app, "AWAY for 12 s")
        assert teams_on(app) == ["acme/batch", "acme/search"]

        script.answers = [status(engine(tenant("new")))]

        await shown(app, "AWAY", is_there=False)
        await shown(app, "acme/new")


async def test_refusal_for_good_ends_it_and_is_told():
    script = Script(TWO_TEAMS)
    refused = CliError("KEY_REVOKED: the key was revoked")
    async with showing(script) as (app, _):
        script.answers = [refused]
        await until(lambda: not app.is_running)

    assert app.return_value is refused


@pytest.mark.parametrize("key", ["q", "escape", "ctrl+c"])
async def test_quitting_ends_an_ask_that_is_under_way(key: str):
    ended: list[bool] = []
    async with showing(Script(TWO_TEAMS), at_quit=lambda: ended.append(True)) as (app, pilot):
        await pilot.press(key)
        await until(lambda: not app.is_running)

    assert ended == [True]
    assert app.return_value is None


async def test_pace_is_changed_by_keys():
    async with showing(Script(TWO_TEAMS), interval_s=8.0) as (app, pilot):
        await pilot.press("minus")
        await shown(app, "drawn every 4 s")
        await pilot.press("plus")
        await pilot.press("plus")
        await shown(app, "drawn every 16 s")


async def test_pipe_gets_one_frame_of_the_real_service(service: AdminService, command_line: CommandLine):
    await service.create_org()
    await service.create_team()

    ran = await command_line("top", "--interval", "0.2")

    assert ran.exit_code == 0, ran.stderr
    assert service.address in ran.stdout
    assert "4 running, 7 waiting" in ran.stdout
    assert "unix:/gone.sock: NOT REACHABLE" in ran.stdout
    (row,) = [line.split() for line in ran.stdout.splitlines() if line.startswith("acme/search")]
    assert row[:6] == ["acme/search", "2", "50.0%", "50.0%", "31", "0"]
    assert service.admin_key not in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--interval", "0"), ExitCode.USAGE, "--interval"),
        (("--sort", "height"), ExitCode.USAGE, "--sort"),
        (("--once", "--address", "127.0.0.1:1"), ExitCode.UNREACHABLE, "cannot reach the gateway at 127.0.0.1:1"),
    ],
)
async def test_what_cannot_be_shown_ends_with_a_reason(
    command_line: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: ExitCode,
    told: str,
):
    monkeypatch.setenv("EVENFLOW_ADMIN_KEY", UNKNOWN_KEY)

    ran = await command_line("top", *arguments)

    assert ran.exit_code == code
    assert told in ran.stderr


async def test_unknown_key_is_refused_at_once(
    service: AdminService, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("EVENFLOW_ADMIN_KEY", UNKNOWN_KEY)

    ran = await command_line("top", "--once")

    assert ran.exit_code == ExitCode.REFUSED
    assert "the key is from the variable EVENFLOW_ADMIN_KEY" in ran.stderr


async def test_gateway_that_comes_back_elsewhere_is_found_again(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("EVENFLOW_ADMIN_KEY", raising=False)
    data_dir = tmp_path / "data"

    @asynccontextmanager
    async def gateway() -> abc.AsyncIterator[AdminService]:
        async with serve_admin(database, database_url, data_dir) as running:
            with DataDir(data_dir).lock():
                (data_dir / "endpoint").write_text(running.address)
                yield running

    poller = Poller(partial(_opened, Target(None, DataDir(data_dir), None)))
    async with gateway() as first:
        assert (await asyncio.to_thread(poller.ask)).address == first.address
    assert isinstance(await asyncio.to_thread(poller.ask), Away)
    assert isinstance(await asyncio.to_thread(poller.ask), Away)
    async with gateway() as second:
        found = await asyncio.to_thread(poller.ask)
        assert found == Reported(second.address, found.status)
        poller.close()
        assert isinstance(await asyncio.to_thread(poller.ask), Away)


async def test_real_terminal_shows_it_until_q_is_pressed(service: AdminService, tmp_path: Path):
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVENFLOW_")} | {
        "EVENFLOW_DATA_DIR": str(tmp_path / "data"),
        "TERM": "xterm-256color",
        "COLUMNS": "80",
        "LINES": "24",
    }
    command = (sys.executable, "-m", "gateway.cli.main", "top")
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        await asyncio.to_thread(read_until, ours, "4 running, 7 waiting")
        os.write(ours, b"q")
        await asyncio.to_thread(read_until, ours, None)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(ours)


def read_until(terminal: int, text: str | None) -> None:
    """Return when the text has been drawn, or, without one, when the other end is closed."""
    drawn = ""
    while text is None or text not in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn):
        try:
            read = os.read(terminal, 4096)
        except OSError:  # nobody has it open any more
            read = b""
        if not read:
            assert text is None, drawn
            return
        drawn += read.decode(errors="replace")
