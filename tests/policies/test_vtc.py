"""The virtual token counter, call by call."""

import pytest

from engine.core.policy import LeaveReason, SequenceView, Service
from engine.core.types import Nanos, PathNode, TenantId
from engine.plugins import InvalidOptionError, load_scheduling_policy
from tests.builders import make_path, make_sequence

NOW = Nanos(0)
A, B, C = (TenantId(f"org-{name}/{name}") for name in "abc")


def make_vtc(**options: str):
    return load_scheduling_policy("vtc", options)


def output(tenant: str, num_tokens: int, weight: float = 1.0) -> Service:
    path = make_path(tenant, weight)
    return Service(TenantId("/".join(node.id for node in path)), path, 0, num_tokens, 0)


def serve(policy, seq: SequenceView, num_output_tokens: int = 0) -> None:
    """Let `seq` arrive and be admitted, and emit."""
    policy.on_arrive(seq, NOW)
    policy.on_leave(seq, LeaveReason.ADMITTED, NOW)
    if num_output_tokens:
        policy.charge(Service(seq.tenant_id, seq.path, 0, num_output_tokens, 0))


class TestCharges:
    def test_the_whole_prompt_is_charged_at_selection(self):
        policy = make_vtc()
        seq = make_sequence(tenant="a", prompt=40)
        policy.on_arrive(seq, NOW)
        assert policy.standing() == {A: 0.0}

        policy.on_leave(seq, LeaveReason.ADMITTED, NOW)
        assert policy.standing() == {A: 40.0}

    def test_output_is_charged_as_it_is_emitted_and_prefill_not_again(self):
        policy = make_vtc()
        serve(policy, make_sequence(tenant="a", prompt=10))

        policy.charge(Service(A, make_path("a"), num_prefill_tokens=10, num_output_tokens=3, num_recomputed_tokens=7))

        assert policy.standing() == {A: 10.0 + 2 * 3}

    def test_a_preempted_request_is_not_charged_again(self):
        policy = make_vtc()
        seq = make_sequence(tenant="a", prompt=10)
        serve(policy, seq)
        seq.num_preemptions = 1
        serve(policy, seq)

        assert policy.standing() == {A: 10.0}

    def test_charges_are_divided_by_the_weights_on_the_path(self):
        policy = make_vtc()
        seq = make_sequence(tenant="a", prompt=40, weight=4.0)
        seq.tenant.path = (PathNode("org-a", 2.0), PathNode("a", 4.0))
        serve(policy, seq, num_output_tokens=8)

        assert policy.standing() == {A: 40 / 8 + 2 * 8 / 8}

    def test_costs_are_options(self):
        policy = make_vtc(prefill_cost="3", output_cost="0.5")
        serve(policy, make_sequence(tenant="a", prompt=10), num_output_tokens=4)

        assert policy.standing() == {A: 3 * 10 + 0.5 * 4}

    def test_what_a_cancelled_request_consumed_stays_charged(self):
        policy = make_vtc()
        seq = make_sequence(tenant="a", prompt=10)
        other = make_sequence(1, tenant="a")
        policy.on_arrive(other, NOW)
        serve(policy, seq)
        policy.on_leave(seq, LeaveReason.FINISHED, NOW)

        assert policy.standing() == {A: 10.0}


class TestOrder:
    def test_the_tenant_that_was_served_least_comes_first(self):
        policy = make_vtc()
        for index, tenant in enumerate("aab"):
            policy.on_arrive(make_sequence(index, tenant=tenant, prompt=10), NOW)

        order = []
        while (seq := policy.select(NOW)) is not None:
            policy.on_leave(seq, LeaveReason.ADMITTED, NOW)
            order.append(seq.arrival_index)

        assert order == [0, 2, 1]

    def test_a_charge_changes_who_is_next_at_once(self):
        policy = make_vtc()
        for index, tenant in enumerate("ab"):
            policy.on_arrive(make_sequence(index, tenant=tenant), NOW)
        assert policy.select(NOW).tenant_id == A

        policy.charge(output("a", 1))
        assert policy.select(NOW).tenant_id == B

    def test_equal_counters_are_ordered_by_arrival(self):
        policy = make_vtc()
        for index, tenant in ((1, "b"), (0, "a")):
            policy.on_arrive(make_sequence(index, tenant=tenant), NOW)

        assert policy.select(NOW).arrival_index == 0

    def test_preempted_requests_of_a_tenant_come_before_those_that_never_ran(self):
        policy = make_vtc()
        policy.on_arrive(make_sequence(0, tenant="a"), NOW)
        preempted = make_sequence(1, tenant="a")
        preempted.num_preemptions = 1
        policy.on_arrive(preempted, NOW)

        assert policy.select(NOW) is preempted

    def test_running_prompts_advance_in_the_order_of_their_tenants_counters(self):
        policy = make_vtc()
        heavy, light = make_sequence(0, tenant="a", prompt=50), make_sequence(1, tenant="b", prompt=5)
        serve(policy, heavy)
        serve(policy, light)
        policy.charge(output("a", 100))

        assert policy.key(light) < policy.key(heavy)


class TestLift:
    def test_a_tenant_that_begins_to_wait_is_lifted_to_the_smallest_waiting_counter(self):
        policy = make_vtc()
        for index, (tenant, served) in enumerate((("a", 30), ("b", 20))):
            serve(policy, make_sequence(index, tenant=tenant, prompt=served))
            policy.on_arrive(make_sequence(2 + index, tenant=tenant), NOW)
        policy.on_arrive(make_sequence(9, tenant="c"), NOW)

        assert policy.standing() == {A: 30.0, B: 50.0, C: 30.0}

    def test_with_an_empty_queue_it_is_lifted_to_the_tenant_that_left_last(self):
        policy = make_vtc()
        serve(policy, make_sequence(0, tenant="a", prompt=30), num_output_tokens=10)
        policy.on_arrive(make_sequence(1, tenant="c"), NOW)

        assert policy.standing()[C] == 30 + 2 * 10

    def test_a_counter_is_never_lowered(self):
        policy = make_vtc()
        first = make_sequence(0, tenant="a", prompt=100)
        serve(policy, first)
        policy.on_arrive(make_sequence(1, tenant="b"), NOW)  # lifted to 100
        policy.on_leave(first, LeaveReason.FINISHED, NOW)
        policy.charge(output("b", 50))
        policy.on_arrive(make_sequence(2, tenant="c"), NOW)
        policy.on_arrive(make_sequence(3, tenant="a"), NOW)

        assert policy.standing() == {A: 200.0, B: 200.0, C: 200.0}

    def test_a_tenant_that_is_already_waiting_is_not_lifted(self):
        policy = make_vtc()
        policy.on_arrive(make_sequence(0, tenant="a"), NOW)
        policy.on_arrive(make_sequence(1, tenant="b"), NOW)
        policy.charge(output("b", 50))
        policy.on_arrive(make_sequence(2, tenant="a"), NOW)

        assert policy.standing()[A] == 0.0

    def test_an_idle_tenant_saves_up_no_credit(self):
        policy = make_vtc()
        idle = make_sequence(0, tenant="a", prompt=1)
        serve(policy, idle)
        policy.on_leave(idle, LeaveReason.FINISHED, NOW)
        for index in range(1, 100):
            policy.on_arrive(make_sequence(index, tenant="b", prompt=10), NOW)
        for _ in range(50):
            policy.on_leave(policy.select(NOW), LeaveReason.ADMITTED, NOW)
        for index in range(100, 110):
            policy.on_arrive(make_sequence(index, tenant="a", prompt=10), NOW)

        chosen = []
        for _ in range(10):
            seq = policy.select(NOW)
            policy.on_leave(seq, LeaveReason.ADMITTED, NOW)
            chosen.append(seq.tenant_id)
        assert chosen.count(A) == 5


class TestMemory:
    def test_counters_of_idle_tenants_do_not_pile_up(self):
        policy = make_vtc()
        for index in range(2_000):
            seq = make_sequence(index, tenant=f"t{index}", prompt=5)
            serve(policy, seq, num_output_tokens=index % 7)
            policy.on_leave(seq, LeaveReason.FINISHED, NOW)

        assert len(policy.standing()) <= 1

    def test_a_tenant_with_running_work_is_not_forgotten(self):
        policy = make_vtc()
        serve(policy, make_sequence(0, tenant="a", prompt=5))
        for index in range(1, 20):
            seq = make_sequence(index, tenant="b", prompt=50)
            serve(policy, seq)
            policy.on_leave(seq, LeaveReason.FINISHED, NOW)

        assert policy.standing()[A] == 5.0


class TestSnapshot:
    def test_carries_counters_and_floor_over(self):
        policy = make_vtc()
        first, second = make_sequence(0, tenant="a", prompt=90), make_sequence(1, tenant="b", prompt=5)
        serve(policy, second)
        serve(policy, first)
        policy.on_leave(second, LeaveReason.FINISHED, NOW)
        successor = make_vtc()
        successor.restore(policy.snapshot())

        for vtc in (policy, successor):
            vtc.on_arrive(make_sequence(2, tenant="c"), NOW)
            assert vtc.standing()[C] == 95.0

    @pytest.mark.parametrize(
        "snapshot",
        [
            b"",
            b"fcfs",
            b"[]",
            b'{"vtc": 3, "floor": 0}',
            b'{"vtc": {"a": "x"}, "floor": 0}',
            b'{"vtc": {"a": NaN}, "floor": 0}',
        ],
    )
    def test_of_another_kind_is_refused(self, snapshot: bytes):
        with pytest.raises(ValueError, match="vtc"):
            make_vtc().restore(snapshot)


@pytest.mark.parametrize("option", ["prefill_cost", "output_cost"])
@pytest.mark.parametrize("value", ["-1", "nan", "inf"])
def test_a_cost_that_makes_no_sense_is_refused_by_name(option: str, value: str):
    with pytest.raises(InvalidOptionError, match=option):
        make_vtc(**{option: value})
