"""The live side of `evenflow sim validate` serves the traffic that the simulated side serves."""

from dataclasses import replace

import pytest

from engine.commands.simulation.validation import Plan, compare
from engine.core.scheduler import Scheduler
from engine.core.types import FinishReason, Nanos
from engine.decision_log import PolicyChoice
from engine.sim.cost_lines import CPU
from engine.sim.errors import StalledError
from engine.sim.run import Setup, simulate
from engine.sim.samples import Samples
from engine.sim.traffic.generate import generate, parse_generator
from engine.sim.traffic.row import NANOS_PER_S, Arrival
from tests.sim.live_engines import make_live_engine
from tests.sim.simulations import LINE, make_config, random_traffic

MS = NANOS_PER_S // 1000
OVER_SERVED = PolicyChoice("over_served", {})


def make_setup(policy: str = "fcfs", **fields: object) -> Setup:
    return Setup(make_config(**fields), LINE, PolicyChoice(policy, {}), OVER_SERVED)


def served_live(setup: Setup, traffic: list[Arrival], until: Nanos | None = None) -> tuple[Samples, Nanos]:
    samples = Samples()
    ended_at = make_live_engine(setup.config, LINE).run(setup, traffic, samples, until)
    return samples, ended_at


def ends(samples: Samples) -> dict[str, tuple]:
    return {name: (each.first_token_at, each.ended_at, each.reason) for name, each in samples.by_id.items()}


@pytest.mark.parametrize("policy", ["fair", "fcfs"])
def test_requests_end_as_they_do_when_simulated(policy: str):
    setup = make_setup(policy)
    traffic = [
        replace(arrival, deadline_after_ns=900 * MS if number % 3 == 0 else None)
        for number, arrival in enumerate(random_traffic(7, 80, rate=20.0))
    ]
    traffic.insert(40, Arrival(traffic[40].at_ns, "o0/t0", 300, 300))
    simulated = Samples()
    simulate(setup, traffic, simulated)

    live, _ = served_live(setup, traffic)

    assert ends(live) == ends(simulated)
    reasons = {sample.reason for sample in live.by_id.values()}
    assert reasons == {FinishReason.LENGTH, FinishReason.CANCELLED, FinishReason.DEADLINE, None}
    assert live.refusals == simulated.refusals
    assert list(live.refusals) == ["r40"]


def test_a_client_that_gives_up_ends_its_request_after_the_step_of_that_moment():
    samples, _ = served_live(make_setup(), [Arrival(0, "o/a", 8, 200, cancel_after_ns=20 * MS)])

    sample = samples.by_id["r0"]
    assert sample.reason is FinishReason.CANCELLED
    assert 20 * MS <= sample.ended_at < 30 * MS  # a step takes 6 ms


def test_a_client_that_would_give_up_later_than_its_answer_is_not_waited_for():
    samples, ended_at = served_live(make_setup(), [Arrival(0, "o/a", 8, 2, cancel_after_ns=3600 * NANOS_PER_S)])

    assert samples.by_id["r0"].reason is FinishReason.LENGTH
    assert ended_at == samples.by_id["r0"].ended_at


def test_a_row_that_can_never_fit_is_refused_and_the_others_are_served():
    samples, _ = served_live(make_setup(), [Arrival(0, "o/a", 500, 500), Arrival(0, "o/a", 8, 2)])

    assert samples.refusals == {"r0": "the request needs room for 1000 tokens, a single request can hold 256"}
    assert samples.by_id["r1"].reason is FinishReason.LENGTH


def test_an_engine_that_computes_nothing_wakes_for_a_deadline(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Scheduler, "plan", lambda self, now: None)

    samples, ended_at = served_live(make_setup(), [Arrival(0, "o/a", 8, 2, deadline_after_ns=500 * MS)])

    assert samples.by_id["r0"].reason is FinishReason.DEADLINE
    assert samples.by_id["r0"].ended_at == ended_at == 500 * MS


def test_requests_that_nothing_will_move_on_are_told_instead_of_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Scheduler, "plan", lambda self, now: None)

    with pytest.raises(StalledError, match="1 requests are unfinished"):
        served_live(make_setup(), [Arrival(0, "o/a", 8, 2)])


def test_a_run_that_is_cut_does_not_sleep_until_the_next_arrival():
    _, ended_at = served_live(make_setup(), [Arrival(3600 * NANOS_PER_S, "o/a", 8, 2)], until=Nanos(NANOS_PER_S))

    assert ended_at == NANOS_PER_S


def test_both_sides_of_a_comparison_serve_the_same_clients():
    words = "tenants=3,rate=5,prompt=uniform:10:60,output=uniform:5:60,requests=60,cancel=0.5:0.5,deadline=3"
    policies = PolicyChoice("fair", {}), PolicyChoice("fcfs", {})

    comparisons = compare(
        make_live_engine(make_config(), CPU), generate(parse_generator(words)), Plan(policies, OVER_SERVED, "cpu")
    )

    assert [figure.error for each in comparisons for figure in each.figures] == [0.0] * 8
    assert [each.step_over_line for each in comparisons] == [1.0, 1.0]
