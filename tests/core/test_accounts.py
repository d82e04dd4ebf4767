"""What is told of requests and tenants: timings, service, statistics; and what makes no request."""

import pytest

from engine.core import flow as flow_module
from engine.core.events import Timings
from engine.core.policy import Service
from engine.core.types import Nanos, PathNode, Request
from engine.plugins import load_scheduling_policy
from tests.builders import STEP_NS, Driver, make_path, make_request, make_scheduler

ALL_FREE = 64


class TestTimings:
    def test_of_a_request_that_queues_and_is_preempted(self):
        driver = Driver(make_scheduler(num_device_blocks=8, growth_reserve_tokens=0, max_num_batched_tokens=12))
        driver.add(make_request("old", prompt=12, max_output_tokens=16))
        driver.add(make_request("new", prompt=12, max_output_tokens=10))
        driver.run()

        # Step 1 computes old's prompt, steps 2-3 new's beside old's decodes; then both decode until old needs a fifth
        # block in step 6, which preempts new with 14 of 15 known tokens computed. It resumes when old has ended, in
        # step 17, with a chunk of 12 and one of 3, and decodes its remaining six tokens.
        assert driver.finished("old").timings == Timings(0, STEP_NS, 15 * STEP_NS, 0, 1, 15)
        timings, usage = driver.finished("new").timings, driver.finished("new").usage
        assert usage.num_recomputed_tokens == 14
        assert timings.queue_ns == STEP_NS
        assert timings.prefill_ns == 2 * STEP_NS
        assert timings.preempted_ns == 11 * STEP_NS
        assert timings.num_prefill_steps == 2
        assert timings.queue_ns + timings.prefill_ns + timings.decode_ns == driver.now
        assert timings.decode_ns == timings.preempted_ns + timings.num_decode_steps * STEP_NS

    def test_of_a_request_that_ends_while_it_is_paused(self):
        driver = Driver(make_scheduler())
        driver.add(make_request("g", prompt=4, granted_output_tokens=1))
        driver.run()
        driver.now = Nanos(5 * STEP_NS)
        driver.abort("g")

        assert driver.finished("g").timings == Timings(0, STEP_NS, 4 * STEP_NS, 4 * STEP_NS, 1, 0)


def test_each_flow_is_charged_once_a_step_in_the_order_of_the_plan():
    policy = load_scheduling_policy("fcfs", {})
    charged: list[Service] = []
    policy.charge = charged.append
    driver = Driver(make_scheduler(policy))
    driver.add(*(make_request(tenant=tenant, prompt=4) for tenant in "bab"))
    driver.step()

    flows = {flow.tenant_id: flow for flow in driver.scheduler.lifecycle.flows.all()}
    b = Service(flows["org-b/b"], 8, 2, 0, num_prefill_keys=2 * (1 + 2 + 3 + 4))
    assert charged == [b, Service(flows["org-a/a"], 4, 1, 0, num_prefill_keys=1 + 2 + 3 + 4)]


def test_each_prompt_token_attends_to_those_before_it_and_itself_whatever_the_chunks():
    policy = load_scheduling_policy("fcfs", {})
    charged: list[Service] = []
    policy.charge = charged.append
    driver = Driver(make_scheduler(policy, max_num_seqs=4, max_num_batched_tokens=4))
    driver.add(make_request(prompt=10, max_output_tokens=3))
    driver.run()

    assert [service.num_prefill_keys for service in charged] == [1 + 2 + 3 + 4, 5 + 6 + 7 + 8, 9 + 10, 0, 0]


class TestStats:
    def test_count_sequences_and_tokens_by_tenant(self):
        driver = Driver(make_scheduler("vtc", max_num_seqs=2))
        driver.add(
            make_request(tenant="b", prompt=4),
            make_request(tenant="a", prompt=6),
            make_request(tenant="a", prompt=6),
            make_request(tenant="a", prompt=6, granted_output_tokens=0),
        )
        driver.step()

        stats = driver.scheduler.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_paused) == (2, 1, 1)
        assert (stats.num_swapped, stats.num_swapping, stats.num_preemptions) == (0, 0, 0)
        assert stats.num_free_blocks == ALL_FREE - 3
        assert stats.policy_fault is None
        a, b = stats.tenants
        assert (a.tenant_id, a.path, a.standing) == ("org-a/a", make_path("a"), (8.0,))
        assert (a.num_running, a.num_waiting, a.num_paused, a.num_device_blocks) == (1, 1, 1, 2)
        assert (a.num_prefill_tokens, a.num_output_tokens, a.num_recomputed_tokens) == (6, 1, 0)
        assert (b.tenant_id, b.path, b.standing) == ("org-b/b", make_path("b"), (6.0,))
        assert (b.num_running, b.num_waiting, b.num_paused, b.num_device_blocks) == (1, 0, 0, 1)
        assert (b.num_prefill_tokens, b.num_output_tokens, b.num_recomputed_tokens) == (4, 1, 0)

    def test_the_newest_revision_of_a_path_counts(self):
        driver = Driver(make_scheduler())
        for revision, weight in ((1, 1.0), (3, 8.0), (3, 4.0), (2, 2.0)):
            driver.add(make_request(tenant="a", weight=weight, policy_revision=revision))

        (tenant,) = driver.scheduler.stats().tenants
        assert tenant.path[-1] == PathNode("a", 4.0)
        flows = {seq.flow for seq in driver.scheduler.lifecycle.by_generation.values()}
        assert [flow.nodes[-1].weight for flow in flows] == [4.0]

    def test_idle_tenants_are_remembered_up_to_a_limit(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(flow_module, "MAX_IDLE_TENANTS", 3)
        driver = Driver(make_scheduler())
        driver.add(make_request("busy", tenant="busy", granted_output_tokens=0))
        for number in (1, 2, 3, 1, 4):
            driver.add(make_request(tenant=f"t{number}", prompt=2, max_output_tokens=1))
            driver.run()

        names = [tenant.tenant_id for tenant in driver.scheduler.stats().tenants]
        assert names == ["org-busy/busy", "org-t1/t1", "org-t3/t3", "org-t4/t4"]
        totals = driver.scheduler.stats().totals
        assert (totals.num_prefill_tokens, totals.num_output_tokens) == (10, 5)  # of all five, t2 included


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": 0}, "prompt"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"weight": 0.0}, "weight"),
        ({"weight": float("nan")}, "weight"),
        ({"weight": float("inf")}, "weight"),
    ],
)
def test_a_request_that_makes_no_sense_cannot_be_built(fields, message):
    with pytest.raises(ValueError, match=message):
        make_request(**fields)


def test_a_request_needs_a_path():
    with pytest.raises(ValueError, match="path"):
        Request("g", (), (1,), 1, Nanos(0))


def test_what_is_charged_counts_as_planned_no_more():
    policy = load_scheduling_policy("fcfs", {})
    planned: list[int] = []
    policy.charge = lambda service: planned.extend(node.num_planned_prefill_tokens for node in service.flow.nodes)
    driver = Driver(make_scheduler(policy))
    driver.add(make_request(prompt=4))
    plan = driver.plan()

    (flow,) = driver.scheduler.lifecycle.flows.all()
    assert [node.num_planned_prefill_tokens for node in flow.nodes] == [4, 4]
    driver.commit(plan)
    assert planned == [0, 0]
