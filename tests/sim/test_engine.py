"""One engine in virtual time: what it does when, and that nothing depends on the host."""

import pytest

from engine.core.plan import CopyDirection
from engine.core.types import FinishReason
from engine.sim.cost_lines import StepTimes
from engine.sim.errors import StalledError
from engine.sim.traffic.row import Arrival
from policies.fcfs import Fcfs
from tests.sim.simulations import LINE, make_simulation, random_traffic

MS = 1_000_000


def test_a_request_alone_takes_the_time_of_its_steps():
    simulation = make_simulation()

    simulation.run([Arrival(10 * MS, "o/a", 20, 3)])

    sample = simulation.samples.by_id["r0"]
    times = StepTimes(LINE)
    prefill_ns = 5 * MS + 20 * 300_000
    assert sample.first_token_at == 10 * MS + prefill_ns
    assert sample.ended_at == sample.first_token_at + times.decode_step_ns(1, 21) + times.decode_step_ns(1, 22)
    assert sample.reason is FinishReason.LENGTH


def test_an_arrival_during_a_step_waits_for_its_end():
    simulation = make_simulation()

    simulation.run([Arrival(0, "o/a", 20, 2), Arrival(1, "o/b", 10, 1)])

    first, second = simulation.samples.by_id["r0"], simulation.samples.by_id["r1"]
    step_ns = 5 * MS + MS + 21 * 1000 + 10 * 300_000  # a decode beside the prompt
    assert second.first_token_at == first.first_token_at + step_ns


def test_a_client_that_gives_up_frees_its_place():
    simulation = make_simulation(num_device_blocks=16, max_num_seqs=1)

    simulation.run([Arrival(0, "o/a", 4, 60, cancel_after_ns=20 * MS), Arrival(0, "o/b", 4, 2)])

    cancelled, served = simulation.samples.by_id["r0"], simulation.samples.by_id["r1"]
    assert cancelled.reason is FinishReason.CANCELLED
    assert served.reason is FinishReason.LENGTH
    assert served.first_token_at > cancelled.ended_at


def test_a_request_that_can_never_fit_is_refused():
    simulation = make_simulation(num_device_blocks=4)

    simulation.run([Arrival(0, "o/a", 100, 1), Arrival(0, "o/a", 4, 2)])

    assert "room for 101 tokens" in simulation.samples.refusals["r0"]
    assert simulation.samples.by_id["r1"].reason is FinishReason.LENGTH


def test_a_deadline_ends_a_request_that_waits():
    simulation = make_simulation(max_num_seqs=1)

    simulation.run([Arrival(0, "o/a", 4, 50), Arrival(0, "o/b", 4, 50, deadline_after_ns=100 * MS)])

    assert simulation.samples.by_id["r1"].reason is FinishReason.DEADLINE
    assert simulation.samples.by_id["r1"].ended_at < 110 * MS


def test_a_copy_takes_the_link_and_its_end_wakes_the_engine():
    fields = {"num_device_blocks": 24, "num_host_blocks": 64, "preemption_mode": "swap"}
    simulation = make_simulation("fcfs", "latest_arrival", **_modes(fields))

    simulation.run(random_traffic(3, 30, rate=20.0, cancels=False, max_prompt=30, max_output=60))

    assert simulation.samples.num_copied_blocks > 0
    assert all(sample.reason is FinishReason.LENGTH for sample in simulation.samples.by_id.values())
    assert simulation.scheduler.num_copies_in_flight == 0


def test_copies_of_one_direction_follow_each_other():
    times = StepTimes(LINE)

    assert times.copy_ns(CopyDirection.OUT, 3) == 6 * MS
    assert times.copy_ns(CopyDirection.IN, 3) == 3 * MS


@pytest.mark.parametrize("policy", ["fcfs", "vtc", "fair", "srpt", "drr", "edf", "mlfq", "priority"])
def test_every_request_ends_and_two_runs_are_the_same(policy: str):
    runs = [make_simulation(policy, "over_served", num_device_blocks=40, num_host_blocks=20) for _ in range(2)]

    for simulation in runs:
        simulation.run(random_traffic(11, 50, rate=15.0))

    assert runs[0].plans == runs[1].plans
    assert runs[0].samples.by_id == runs[1].samples.by_id
    assert all(sample.ended_at is not None for sample in runs[0].samples.by_id.values())


def test_a_policy_that_names_nobody_is_told_of_and_everyone_is_served():
    class Miser(Fcfs):
        def select(self, passed):
            return None

    simulation = make_simulation(Miser())

    simulation.run([Arrival(0, "o/a", 4, 2)])

    assert simulation.scheduler.policy_fault
    assert simulation.samples.by_id["r0"].reason is FinishReason.LENGTH


def test_requests_that_nothing_moves_on_are_told_of(monkeypatch: pytest.MonkeyPatch):
    simulation = make_simulation()
    monkeypatch.setattr(simulation.scheduler, "plan", lambda now: None)

    with pytest.raises(StalledError, match="1 requests are unfinished"):
        simulation.run([Arrival(0, "o/a", 4, 2)])


def _modes(fields: dict[str, object]) -> dict[str, object]:
    from engine.core.config import PreemptionChoice

    return {**fields, "preemption_mode": PreemptionChoice(fields["preemption_mode"])}
