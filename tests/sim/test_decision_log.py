"""A decision log replays to the same plans, and says where it does not. It holds no token of anybody."""

import io
import json

import pytest

from engine.core.errors import DuplicateRequestError, PolicyTakeoverError, RequestTooLargeError
from engine.core.scheduler import Scheduler
from engine.core.types import FinishReason, Nanos, PriorityClass, SamplingParams
from engine.decision_log import DecisionLog, LogHeader, PolicyChoice, RecordedScheduler
from engine.plugins import load_preemption_policy, load_scheduling_policy
from engine.sim.errors import ReplayError
from engine.sim.replay import replay
from engine.sim.samples import Samples
from engine.sim.service_meter import meter
from engine.sim.world import Replica, World
from policies.fcfs import Fcfs
from tests.builders import make_request
from tests.fakes import ReferenceRunner, expected_output
from tests.sim.simulations import LINE, make_config, random_traffic, with_prefixes

CHOICES = PolicyChoice("fair", {}), PolicyChoice("over_served", {})


def recorded(file: io.StringIO, scheduling: str = "fair", **fields: object) -> tuple[RecordedScheduler, object]:
    config = make_config(**fields)
    policy = meter(load_scheduling_policy(scheduling, {}))
    scheduler = Scheduler(config, policy, load_preemption_policy("over_served", {}))
    header = LogHeader(config, PolicyChoice(scheduling, {}), PolicyChoice("over_served", {}))
    return RecordedScheduler(scheduler, DecisionLog(file, header)), policy


def simulated_log(scheduling: str, **fields: object) -> list[str]:
    file = io.StringIO()
    scheduler, policy = recorded(file, scheduling, **fields)
    World([Replica(scheduler, policy)], LINE, Samples()).run(random_traffic(4, 50, rate=12.0))
    return file.getvalue().splitlines()


@pytest.mark.parametrize("scheduling", ["fcfs", "vtc", "fair", "srpt", "drr", "edf", "mlfq", "priority"])
def test_a_log_replays_to_the_same_plans(scheduling: str):
    lines = simulated_log(scheduling, num_device_blocks=40, num_host_blocks=20)

    report = replay(lines)

    assert report.is_identical
    assert report.num_plans == report.num_equal > 100


@pytest.mark.parametrize("scheduling", ["fcfs", "fair"])
def test_a_log_of_an_engine_that_shares_prefixes_replays_to_the_same_plans(scheduling: str):
    file = io.StringIO()
    limits = {"num_device_blocks": 40, "num_host_blocks": 20, "enable_prefix_caching": True}
    scheduler, policy = recorded(file, scheduling, **limits)
    World([Replica(scheduler, policy)], LINE, Samples()).run(with_prefixes(random_traffic(4, 50, rate=12.0)))

    report = replay(file.getvalue().splitlines())

    assert report.is_identical
    assert report.num_plans == report.num_equal > 100
    assert scheduler.stats().totals.num_found_tokens > 100


def test_turns_of_a_conversation_are_found_again_in_a_replay():
    file = io.StringIO()
    scheduler, _ = recorded(file, block_size=4, enable_prefix_caching=True)
    runner = ReferenceRunner(4)
    prompt, stop = list(range(9)), frozenset(range(0, 97, 9))
    for turn in range(6):
        request = make_request(f"g{turn}", prompt=prompt, max_output_tokens=15, stop_token_ids=stop)
        scheduler.add(request, Nanos(1000 * turn))
        run_steps(scheduler, 40, since=1000 * turn + 10, runner=runner)
        prompt += [*expected_output(request), turn]

    assert replay(file.getvalue().splitlines()).is_identical
    assert scheduler.stats().totals.num_found_tokens > 60


def test_no_block_of_a_log_can_be_told_from_its_tokens():
    texts = []
    for _ in range(2):
        file = io.StringIO()
        scheduler, _ = recorded(file, block_size=4, enable_prefix_caching=True)
        scheduler.add(make_request("g", prompt=range(9), cache_salt=b"public"), Nanos(0))
        texts.append(json.loads(file.getvalue().splitlines()[1])["request"]["blocks"])

    assert len(texts[0]) == len(texts[1]) == 2
    assert not set(texts[0]) & set(texts[1])


def test_a_log_whose_blocks_do_not_fit_its_prompts_is_refused():
    file = io.StringIO()
    scheduler, _ = recorded(file, block_size=4, enable_prefix_caching=True)
    scheduler.add(make_request("g", prompt=range(9)), Nanos(0))
    header, line = file.getvalue().splitlines()

    with pytest.raises(ReplayError, match="line 2: a prompt of 10000000000 tokens has no 2 full blocks"):
        replay([header, line.replace('"prompt":9', '"prompt":10000000000')])


def test_every_command_is_replayed():
    file = io.StringIO()
    scheduler, _ = recorded(file, num_device_blocks=64)
    runner = ReferenceRunner(scheduler.config.block_size)
    scheduler.calibrate(LINE.scheduler_prices(), Nanos(0))
    stop = frozenset(range(0, 97, 5))  # some of the tokens that the runner makes
    for index, tenant in enumerate("abcab"):
        request = make_request(
            f"g{index}",
            tenant=tenant,
            prompt=range(index, index + 9),
            max_output_tokens=40,
            stop_token_ids=stop,
            sampling=SamplingParams(seed=index),
        )
        scheduler.add(request, Nanos(index))
    scheduler.grant("g0", 3, Nanos(6))
    scheduler.set_class("g1", PriorityClass("gold", -1), Nanos(6))
    scheduler.set_reader_blocked("g2", blocked=True, now=Nanos(6))
    scheduler.update_nodes([(("org-a", "a"), 3.0, 7)], Nanos(7))
    scheduler.update_classes([PriorityClass("gold", -2)], 8, Nanos(8))
    now = 10
    for step in range(60):
        plan = scheduler.plan(Nanos(now))
        if plan is None:
            break
        scheduler.commit(runner.execute(plan), Nanos(now + 5))
        if step == 4:
            scheduler.abort("g3", FinishReason.CANCELLED, Nanos(now + 6))
            scheduler.set_reader_blocked("g2", blocked=False, now=Nanos(now + 6))
            other = load_scheduling_policy("vtc", {})
            scheduler.name_policies((other, PolicyChoice("vtc", {})))
            scheduler.set_scheduling_policy(other, Nanos(now + 6))
        now += 10
    lines = file.getvalue().splitlines()

    assert replay(lines).is_identical
    called = {json.loads(line).get("e") for line in lines[1:]}
    assert {"add", "abort", "grant", "set_class", "set_reader_blocked", "update_nodes", "update_classes"} <= called
    assert {"calibrate", "plan", "commit", "set_scheduling_policy"} <= called


def run_steps(scheduler: RecordedScheduler, num_steps: int, since: int = 10, runner: ReferenceRunner | None = None):
    """Plans and commits, until there is nothing to compute. Returns the runner."""
    runner = runner or ReferenceRunner(scheduler.config.block_size)
    for step in range(num_steps):
        plan = scheduler.plan(Nanos(since + 10 * step))
        if plan is None:
            break
        scheduler.commit(runner.execute(plan), Nanos(since + 10 * step + 5))
    return runner


def calls(file: io.StringIO, method: str) -> list[dict]:
    lines = map(json.loads, file.getvalue().splitlines()[1:])
    return [line for line in lines if line["e"] == method]


def test_requests_that_were_refused_are_refused_again():
    file = io.StringIO()
    scheduler, _ = recorded(file, num_device_blocks=64)
    scheduler.add(make_request("first"), Nanos(0))
    with pytest.raises(DuplicateRequestError):
        scheduler.add(make_request("first"), Nanos(1))
    with pytest.raises(RequestTooLargeError):
        scheduler.add(make_request("long", max_output_tokens=100_000), Nanos(2))
    run_steps(scheduler, 9)

    report = replay(file.getvalue().splitlines())

    assert report.is_identical
    assert report.num_plans > 3
    assert [line.get("raised") for line in calls(file, "add")] == [
        None,
        "DuplicateRequestError",
        "RequestTooLargeError",
    ]


class Unwilling(Fcfs):
    """Fails when it is to take over from another policy."""

    def on_arrive(self, seq, now):
        raise RuntimeError("no")


def test_a_policy_that_failed_to_take_over_fails_again(monkeypatch: pytest.MonkeyPatch):
    file = io.StringIO()
    scheduler, _ = recorded(file)
    scheduler.add(make_request(), Nanos(0))
    unwilling = Unwilling()
    scheduler.name_policies((unwilling, PolicyChoice("unwilling", {"much": "1"})))
    with pytest.raises(PolicyTakeoverError):
        scheduler.set_scheduling_policy(unwilling, Nanos(1))
    run_steps(scheduler, 9)

    monkeypatch.setattr(
        "engine.sim.replay.load_scheduling_policy",
        lambda name, options: Unwilling() if name == "unwilling" else load_scheduling_policy(name, options),
    )
    report = replay(file.getvalue().splitlines())

    assert report.is_identical
    assert report.num_plans > 3
    [switch] = calls(file, "set_scheduling_policy")
    assert (switch["name"], switch["options"], switch["raised"]) == ("unwilling", {"much": "1"}, "PolicyTakeoverError")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"raised": "RequestTooLargeError"}, "add raised RequestTooLargeError when it was recorded, and does not now"),
        ({"request": {"output": 100_000}}, "a single request can hold 256"),
    ],
)
def test_a_call_that_ends_otherwise_than_it_did_is_named(change: dict, problem: str):
    file = io.StringIO()
    scheduler, _ = recorded(file)
    scheduler.add(make_request(), Nanos(0))
    header, line = file.getvalue().splitlines()
    add = json.loads(line)
    add["request"] |= change.pop("request", {})

    with pytest.raises(ReplayError, match=f"line 2: .*{problem}"):
        replay([header, json.dumps(add | change)])


def test_the_stops_of_a_request_end_with_it():
    file = io.StringIO()
    scheduler, _ = recorded(file)
    every = frozenset(range(97))  # whatever the runner makes ends the output
    scheduler.add(make_request("again", stop_token_ids=every), Nanos(0))
    runner = run_steps(scheduler, 9)
    scheduler.add(make_request("again", max_output_tokens=3), Nanos(500))
    run_steps(scheduler, 9, since=500, runner=runner)

    assert [bool(line.get("ended")) for line in calls(file, "commit")] == [True, False, False, False]
    assert replay(file.getvalue().splitlines()).is_identical


def test_a_policy_is_called_by_the_name_that_was_given_last():
    scheduler, _ = recorded(io.StringIO())
    earlier, later = Fcfs(), Fcfs()
    scheduler.name_policies((earlier, PolicyChoice("earlier", {})))
    scheduler.name_policies((later, PolicyChoice("later", {})))

    with pytest.raises(LookupError, match="Fcfs was not named"):
        scheduler.set_scheduling_policy(earlier, Nanos(0))
    scheduler.set_scheduling_policy(later, Nanos(0))


def test_changes_of_records_and_policies_have_their_own_times():
    file = io.StringIO()
    scheduler, _ = recorded(file)
    victims = load_preemption_policy("never", {})
    scheduler.add(make_request(), Nanos(1))
    scheduler.update_nodes([(("org-a", "a"), 3.0, 7)], Nanos(2))
    scheduler.update_classes([PriorityClass("gold", -2)], 8, Nanos(3))
    scheduler.name_policies((victims, PolicyChoice("never", {})))
    scheduler.set_preemption_policy(victims, Nanos(4))

    lines = map(json.loads, file.getvalue().splitlines()[1:])
    assert [(line["e"], line["t"]) for line in lines] == [
        ("add", 1),
        ("update_nodes", 2),
        ("update_classes", 3),
        ("set_preemption_policy", 4),
    ]


def test_another_decision_is_found_at_its_line():
    lines = simulated_log("fair")
    header = json.loads(lines[0])
    header["scheduling_policy"]["name"] = "srpt"

    report = replay([json.dumps(header), *lines[1:]])

    assert not report.is_identical
    difference = report.difference
    assert json.loads(lines[difference.line_number - 1])["digest"] == difference.expected_digest


def test_a_log_holds_no_tokens():
    file = io.StringIO()
    scheduler, _ = recorded(file)
    request = make_request(prompt=[91, 92, 93], sampling=SamplingParams(seed=94), cache_salt=b"secret")

    scheduler.add(request, Nanos(0))

    line = json.loads(file.getvalue().splitlines()[1])["request"]
    assert line["prompt"] == 3
    assert not {"91", "92", "93", "94"} & set(json.dumps(line).replace(",", " ").split())
    assert b"secret".hex() not in json.dumps(line)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "is not JSON"),
        ("3", "is not an object"),
        ('{"t": 0, "e": "wish"}', "'wish' is missing or unknown"),
        ('{"e": "plan"}', "'t' is missing or unknown"),
        ('{"t": 0, "e": "commit", "step": 9}', "commits step 9"),
    ],
)
def test_a_line_that_makes_no_sense_is_named(line: str, problem: str):
    header = simulated_log("fcfs")[0]

    with pytest.raises(ReplayError, match=f"line 2: .*{problem}"):
        replay([header, line])


def test_a_log_of_another_version_is_refused():
    with pytest.raises(ReplayError, match="line 1: version is 99"):
        replay(['{"version": 99}'])


@pytest.mark.parametrize("name", ["num_device_blocks", "num_host_blocks", "max_num_seqs"])
def test_a_header_of_an_engine_that_no_machine_has_is_refused(name: str):
    header = json.loads(simulated_log("fcfs")[0])
    header["config"][name] = 10**13

    with pytest.raises(ReplayError, match=f"line 1: .*{name} lies within 0 and"):
        replay([json.dumps(header)])


def test_a_line_with_an_object_of_another_shape_is_named():
    log = simulated_log("fcfs")
    number, commit = next((number, text) for number, text in enumerate(log) if '"commit"' in text)

    with pytest.raises(ReplayError, match=f"line {number + 1}: "):
        replay([*log[:number], json.dumps(json.loads(commit) | {"lengths": [1]})])


def test_drafts_are_replayed_from_their_numbers():
    file = io.StringIO()
    scheduler, _ = recorded(file, num_device_blocks=30, num_draft_tokens=4)
    for index, tenant in enumerate("abcab"):
        request = make_request(f"g{index}", tenant=tenant, prompt=9, max_output_tokens=30, speculates=index != 1)
        scheduler.add(request, Nanos(index))
    run_steps(scheduler, 200)
    lines = file.getvalue().splitlines()
    assert not scheduler.has_unfinished
    assert scheduler.stats().totals.num_accepted_tokens > 0

    assert replay(lines).is_identical
    assert any("proposed" in line for line in calls(file, "commit"))
    changed = [line.replace('"proposed":{"0":', '"proposed":{"0":4') for line in lines]  # many more than there were
    assert changed != lines
    assert not replay(changed).is_identical
