"""The virtual token counter, call by call."""

import json

import pytest

from engine.core.policy import LeaveReason, SequenceView, Service
from engine.plugins import InvalidOptionError, load_scheduling_policy
from tests.policies.views import NOW, admit, finish, make_flow, make_view, output, preempt, standing, tenant_id

A, B, C = map(tenant_id, "abc")


def make_vtc(**options: str):
    return load_scheduling_policy("vtc", options)


def serve(policy, seq: SequenceView, num_output_tokens: int = 0) -> None:
    """Let `seq` arrive and be admitted, and emit."""
    policy.on_arrive(seq, NOW)
    admit(policy, seq)
    if num_output_tokens:
        policy.charge(Service(seq.flow, 0, num_output_tokens, 0))


def standings(policy, *tenants: str) -> dict[str, float]:
    return {tenant: standing(policy, tenant) for tenant in tenants}


class TestCharges:
    def test_the_whole_prompt_is_charged_at_selection(self):
        policy = make_vtc()
        seq = make_view(tenant="a", prompt=40)
        policy.on_arrive(seq, NOW)
        assert standing(policy, "a") == 0.0

        policy.on_leave(seq, LeaveReason.ADMITTED, NOW)
        assert standing(policy, "a") == 40.0

    def test_output_is_charged_as_it_is_emitted_and_prefill_not_again(self):
        policy = make_vtc()
        serve(policy, make_view(tenant="a", prompt=10))

        policy.charge(Service(make_flow("a"), num_prefill_tokens=10, num_output_tokens=3, num_recomputed_tokens=7))

        assert standing(policy, "a") == 10.0 + 2 * 3

    def test_a_preempted_request_is_not_charged_again(self):
        policy = make_vtc()
        seq = make_view(tenant="a", prompt=10)
        serve(policy, seq)
        for swap in (True, False):
            preempt(policy, seq, swap=swap)
            admit(policy, seq)

        assert standing(policy, "a") == 10.0

    def test_charges_are_divided_by_the_weights_on_the_path(self):
        policy = make_vtc()
        seq = make_view(tenant="a", prompt=40, weight=4.0)
        seq.flow.nodes[0].weight = 2.0
        serve(policy, seq, num_output_tokens=8)

        assert standing(policy, "a") == 40 / 8 + 2 * 8 / 8

    def test_costs_are_options(self):
        policy = make_vtc(prefill_cost="3", output_cost="0.5")
        serve(policy, make_view(tenant="a", prompt=10), num_output_tokens=4)

        assert standing(policy, "a") == 3 * 10 + 0.5 * 4

    def test_what_a_cancelled_request_consumed_stays_charged(self):
        policy = make_vtc()
        seq = make_view(tenant="a", prompt=10)
        other = make_view(1, tenant="a")
        policy.on_arrive(other, NOW)
        serve(policy, seq)
        finish(policy, seq)

        assert standing(policy, "a") == 10.0


class TestOrder:
    def test_the_tenant_that_was_served_least_comes_first(self):
        policy = make_vtc()
        for index, tenant in enumerate("aab"):
            policy.on_arrive(make_view(index, tenant=tenant, prompt=10), NOW)

        order = []
        while (seq := policy.select(())) is not None:
            policy.on_leave(seq, LeaveReason.ADMITTED, NOW)
            order.append(seq.arrival_index)

        assert order == [0, 2, 1]

    def test_a_charge_changes_who_is_next_at_once(self):
        policy = make_vtc()
        for index, tenant in enumerate("ab"):
            policy.on_arrive(make_view(index, tenant=tenant), NOW)
        assert policy.select(()).tenant_id == A

        policy.charge(output("a", 1))
        assert policy.select(()).tenant_id == B

    def test_equal_counters_are_ordered_by_arrival(self):
        policy = make_vtc()
        for index, tenant in ((1, "b"), (0, "a")):
            policy.on_arrive(make_view(index, tenant=tenant), NOW)

        assert policy.select(()).arrival_index == 0

    def test_preempted_requests_of_a_tenant_come_before_those_that_never_ran(self):
        policy = make_vtc()
        policy.on_arrive(make_view(0, tenant="a"), NOW)
        preempted = make_view(1, tenant="a")
        preempted.num_preemptions = 1
        policy.on_arrive(preempted, NOW)

        assert policy.select(()) is preempted

    def test_running_prompts_advance_in_the_order_of_their_tenants_counters(self):
        policy = make_vtc()
        heavy, light = make_view(0, tenant="a", prompt=50), make_view(1, tenant="b", prompt=5)
        serve(policy, heavy)
        serve(policy, light)
        policy.charge(output("a", 100))

        assert policy.key(light) < policy.key(heavy)

    def test_nobody_passes_the_least_served_tenants_head(self):
        policy = make_vtc()
        for index, tenant in enumerate("ab"):
            policy.on_arrive(make_view(index, tenant=tenant), NOW)

        assert policy.select((policy.select(()),)) is None


class TestLift:
    def test_a_tenant_that_begins_to_wait_is_lifted_to_the_smallest_waiting_counter(self):
        policy = make_vtc()
        for index, (tenant, served) in enumerate((("a", 30), ("b", 20))):
            serve(policy, make_view(index, tenant=tenant, prompt=served))
            policy.on_arrive(make_view(2 + index, tenant=tenant), NOW)
        policy.on_arrive(make_view(9, tenant="c"), NOW)

        assert standings(policy, *"abc") == {"a": 30.0, "b": 50.0, "c": 30.0}

    def test_with_an_empty_queue_it_is_lifted_to_the_tenant_that_left_last(self):
        policy = make_vtc()
        serve(policy, make_view(0, tenant="a", prompt=30), num_output_tokens=10)
        policy.on_arrive(make_view(1, tenant="c"), NOW)

        assert standing(policy, "c") == 30 + 2 * 10

    def test_a_counter_is_never_lowered(self):
        policy = make_vtc()
        first = make_view(0, tenant="a", prompt=100)
        serve(policy, first)
        policy.on_arrive(make_view(1, tenant="b"), NOW)  # lifted to 100
        finish(policy, first)
        policy.charge(output("b", 50))
        policy.on_arrive(make_view(2, tenant="c"), NOW)
        policy.on_arrive(make_view(3, tenant="a"), NOW)

        assert standings(policy, *"abc") == {"a": 200.0, "b": 200.0, "c": 200.0}

    def test_a_tenant_that_is_already_waiting_is_not_lifted(self):
        policy = make_vtc()
        policy.on_arrive(make_view(0, tenant="a"), NOW)
        policy.on_arrive(make_view(1, tenant="b"), NOW)
        policy.charge(output("b", 50))
        policy.on_arrive(make_view(2, tenant="a"), NOW)

        assert standing(policy, "a") == 0.0

    def test_an_idle_tenant_saves_up_no_credit(self):
        policy = make_vtc()
        idle = make_view(0, tenant="a", prompt=1)
        serve(policy, idle)
        finish(policy, idle)
        for index in range(1, 100):
            policy.on_arrive(make_view(index, tenant="b", prompt=10), NOW)
        for _ in range(50):
            policy.on_leave(policy.select(()), LeaveReason.ADMITTED, NOW)
        for index in range(100, 110):
            policy.on_arrive(make_view(index, tenant="a", prompt=10), NOW)

        chosen = []
        for _ in range(10):
            seq = policy.select(())
            policy.on_leave(seq, LeaveReason.ADMITTED, NOW)
            chosen.append(seq.tenant_id)
        assert chosen.count(A) == 5


class TestMemory:
    def test_counters_of_idle_tenants_do_not_pile_up(self):
        policy = make_vtc()
        for index in range(2_000):
            seq = make_view(index, tenant=f"t{index}", prompt=5)
            serve(policy, seq, num_output_tokens=index % 7)
            finish(policy, seq)

        assert len(json.loads(policy.snapshot())["counters"]) <= 1

    def test_a_tenant_with_running_work_is_not_forgotten(self):
        policy = make_vtc()
        serve(policy, make_view(0, tenant="a", prompt=5))
        for index in range(1, 20):
            seq = make_view(index, tenant="b", prompt=50)
            serve(policy, seq)
            finish(policy, seq)

        assert standing(policy, "a") == 5.0


class TestSnapshot:
    def test_carries_counters_and_floor_over(self):
        policy = make_vtc()
        first, second = make_view(0, tenant="a", prompt=90), make_view(1, tenant="b", prompt=5)
        serve(policy, second)
        serve(policy, first)
        finish(policy, second)
        successor = make_vtc()
        successor.restore(policy.snapshot())

        for vtc in (policy, successor):
            vtc.on_arrive(make_view(2, tenant="c"), NOW)
            assert standing(vtc, "c") == 95.0

    @pytest.mark.parametrize(
        "snapshot",
        [
            b"",
            b"fcfs",
            b"[]",
            b'{"policy": "mlfq"}',
            b'{"policy": "vtc", "counters": 3, "floor": 0}',
            b'{"policy": "vtc", "counters": {"a": "x"}, "floor": 0}',
            b'{"policy": "vtc", "counters": {"a": NaN}, "floor": 0}',
            b'{"policy": "vtc", "counters": {"a": 1}, "floor": null}',
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
