"""`evenflow queue` and `evenflow generations`, against a gateway in front of a scripted engine."""

import json
import re

import pytest

from gateway.cli.queue import standing_text
from tests.cli.command_line import CommandLine, Ran
from tests.gateway.calls import rest_of
from tests.gateway.fake_engine import begun
from tests.gateway.test_queue_admin import FIRST, NOBODYS, SECOND, waiting_in
from tests.gateway.test_request_ids import ID
from tests.gateway.world import Tenant, World, eventually, refused

LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:")


class Shell:
    """The command line of somebody who has these keys."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, admin: Tenant, tenant: Tenant) -> None:
        monkeypatch.setenv("EVENFLOW_ADDRESS", world.live.address)
        monkeypatch.setenv("EVENFLOW_ADMIN_KEY", admin.key)
        monkeypatch.setenv("EVENFLOW_API_KEY", tenant.key)

    async def __call__(self, *arguments: str, stdin: str = "") -> Ran:
        return await CommandLine()(*arguments, stdin=stdin)


def data_of(ran: Ran):
    """What was printed, less the lines that the gateway in this process logs meanwhile."""
    assert ran.exit_code == 0, ran.stderr
    lines = [line for line in ran.stdout.splitlines() if not LOG_LINE.match(line)]
    return json.loads("\n".join(lines))


@pytest.fixture
async def shell(world: World, tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(world, monkeypatch, await world.administrator(), tenant)


async def test_the_queue_reads_like_a_queue(world: World, tenant: Tenant, shell: Shell) -> None:
    waiting_in(world, tenant, await world.tenant("globex"))
    everything = await shell("queue", "list")
    acme = await shell("queue", "list", "--team", "acme/search", "-o", "json")
    running = await shell("queue", "list", "--state", "running", "-o", "json")

    assert "acme/search" in everything.stdout
    assert "globex/search" in everything.stdout
    assert "1.5 s" in everything.stdout
    assert [entry["generation_id"] for entry in data_of(acme)] == [FIRST]
    assert data_of(running) == []


async def test_an_engine_that_is_away_is_told_beside_the_list(world: World, shell: Shell) -> None:
    await world.engine.stop()
    ran = await shell("queue", "list")

    assert ran.exit_code == 0
    assert world.engine.address in ran.stderr


async def test_an_explanation_says_who_is_ahead_and_what_holds_it_up(
    world: World, tenant: Tenant, shell: Shell
) -> None:
    waiting_in(world, tenant, tenant)
    ran = await shell("queue", "explain", SECOND)
    unknown = await shell("queue", "explain", NOBODYS)

    assert "1 before it" in ran.stdout
    assert "others are served first" in ran.stdout
    assert FIRST in ran.stdout
    assert unknown.exit_code == 1
    assert "not found" in unknown.stderr


async def test_a_generation_can_be_looked_up_while_it_runs_and_afterwards(
    world: World, tenant: Tenant, shell: Shell
) -> None:
    world.engine.script = begun
    stream = tenant.stream(request_id=ID)
    generation_id = (await stream.read()).admission.generation_id
    await stream.read()
    running = await shell("generations", "get", generation_id)
    stream.cancel()
    await eventually(lambda: not world.live.num_live_requests)
    ended = await shell("generations", "get", ID, "--request-id", "-o", "json")

    assert "running" in running.stdout
    found = data_of(ended)
    assert (found["generation_id"], found["request_id"]) == (generation_id, ID)
    assert found["usage"]["output_tokens"] == "3"


async def test_what_runs_can_be_ended_after_a_question(world: World, tenant: Tenant, shell: Shell) -> None:
    world.engine.script = begun
    streams = [tenant.stream() for _ in range(3)]
    ids = [(await stream.read()).admission.generation_id for stream in streams]
    kept = await shell("generations", "cancel", "--team", "acme/search", stdin="n\n")
    assert world.live.num_live_requests == 3
    one = await shell("generations", "cancel", ids[0], "--yes", "-o", "json")
    rest = await shell("generations", "cancel", "--key", tenant.public_id, "--yes", "--reason", "maintenance")
    nothing = await shell("generations", "cancel", "--team", "acme/search", "--yes")
    await eventually(lambda: not world.live.num_live_requests)

    assert kept.exit_code == 1
    assert data_of(one) == [ids[0]]
    assert "2 told to stop" in rest.stdout
    assert "0 told to stop" in nothing.stdout
    for stream in streams:
        assert (await refused(rest_of(stream))).info.reason == "GENERATION_CANCELLED"


@pytest.mark.parametrize(
    "arguments",
    [
        ("generations", "cancel"),
        ("generations", "cancel", "a", "--team", "acme/search"),
        ("queue", "list", "--team", "acme"),
        ("queue", "list", "--state", "odd"),
    ],
)
async def test_wrong_usage_ends_with_two(shell: Shell, arguments: tuple[str, ...]) -> None:
    assert (await shell(*arguments)).exit_code == 2


@pytest.mark.parametrize(
    ("standing", "text"),
    [
        ([], "the policy does not count"),
        ([5.0], "team 5 (higher than a sibling's: over-served)"),
        ([1200.5, 0.0], "organization 1200.5, team 0 (higher than a sibling's: over-served)"),
    ],
)
def test_what_a_policy_counts_is_said_of_whom(standing: list[float], text: str) -> None:
    assert standing_text(standing) == text


async def test_a_switch_of_policies_says_and_records_what_was_before_with_its_options(
    world: World, shell: Shell
) -> None:
    switched = await shell("engines", "set-policy", "fcfs")
    (event,) = data_of(await shell("audit", "list", "--limit", "1", "-o", "json"))

    assert "vtc (output_cost=3)" in switched.stdout
    before = json.loads(event["before"])[world.engine.address]
    after = json.loads(event["after"])[world.engine.address]
    assert (before["scheduling_policy"], before["scheduling_options"]) == ("vtc", {"output_cost": "3"})
    assert (after["scheduling_policy"], after["scheduling_options"]) == ("fcfs", {})
    assert before["preemption_policy"] == after["preemption_policy"] == "never"
