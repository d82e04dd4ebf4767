"""Policies, weights and classes are changed while the engine runs; what is wrong is refused whole, by its field."""

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from engine.core.config import PreemptionChoice
from evenflow.engine.v1 import engine_pb2 as pb
from tests.engine.wire import expected_tokens, generate, start


async def refused_field(call) -> str:
    """The field that the refusal names."""
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await call
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    info = error_details_pb2.ErrorInfo()
    assert rpc_status.from_call(refusal.value).details[0].Unpack(info)
    assert info.reason == "INVALID_FIELD"
    return info.metadata["field"]


def switch(name: str = "", **fields) -> pb.SetSchedulingPolicyRequest:
    return pb.SetSchedulingPolicyRequest(name=name, **fields)


async def test_switch_is_told_by_the_figures_and_the_work_goes_on(stub, runner):
    runner.hold()
    runner.allow(2)
    answer = generate(stub, start("a", max_output_tokens=40))
    await answer.until("token_chunk")
    before = (await runner.step_until(stub.GetStats(pb.GetStatsRequest()))).scheduling_policy

    response = await runner.step_until(stub.SetSchedulingPolicy(switch("fcfs", preemption_name="latest_arrival")))

    runner.release()
    stats = await stub.GetStats(pb.GetStatsRequest())
    assert response.previous_name == before
    assert (stats.scheduling_policy, stats.preemption_policy) == ("fcfs", "latest_arrival")
    assert (await answer.to_end()).token_ids == expected_tokens(40)
    assert stats.policy_fault == ""


async def test_options_in_force_are_those_of_the_policy_that_they_came_with(stub):
    await stub.SetSchedulingPolicy(switch("vtc", options={"output_cost": "3"}))
    assert dict((await stub.GetStats(pb.GetStatsRequest())).scheduling_options) == {"output_cost": "3"}

    await stub.SetSchedulingPolicy(switch("fcfs"))
    assert dict((await stub.GetStats(pb.GetStatsRequest())).scheduling_options) == {}


async def test_answer_to_a_switch_has_the_options_of_what_was_before(stub):
    await stub.SetSchedulingPolicy(switch("vtc", options={"output_cost": "3"}))

    response = await stub.SetSchedulingPolicy(switch("fcfs"))
    again = await stub.SetSchedulingPolicy(switch("vtc"))

    assert (response.previous_name, dict(response.previous_options)) == ("vtc", {"output_cost": "3"})
    assert (again.previous_name, dict(again.previous_options)) == ("fcfs", {})


async def test_switch_that_is_only_tried_changes_nothing(stub):
    before = await stub.GetStats(pb.GetStatsRequest())

    response = await stub.SetSchedulingPolicy(switch("fcfs", validate_only=True))

    after = await stub.GetStats(pb.GetStatsRequest())
    assert response.previous_name == before.scheduling_policy == after.scheduling_policy


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (switch(), "name"),
        (switch("nobody"), "name"),
        (switch("fcfs", options={"no_such": "1"}), "options"),
        (switch("vtc", options={"output_cost": "heavy"}), "options"),
        (switch("vtc", options={"output_cost": "-1"}), "options"),
        (switch(preemption_name="nobody"), "preemption_name"),
        (switch(preemption_name="latest_arrival", preemption_options={"x": "1"}), "preemption_options"),
        (switch(options={"x": "1"}, preemption_name="latest_arrival"), "options"),
    ],
)
async def test_policy_that_cannot_be_taken_is_refused_by_its_field(stub, request_, field, validate_only):
    request_ = pb.SetSchedulingPolicyRequest.FromString(request_.SerializeToString())
    request_.validate_only = validate_only

    assert await refused_field(stub.SetSchedulingPolicy(request_)) == field


@pytest.mark.parametrize("validate_only", [False, True])
async def test_policies_that_do_not_go_together_are_refused(stub, validate_only):
    together = switch("fair", options={"mode": "strict"}, preemption_name="never", validate_only=validate_only)

    assert await refused_field(stub.SetSchedulingPolicy(together)) == "preemption_name"


async def test_new_weight_is_in_force_for_a_request_that_runs(stub, runner):
    runner.hold()
    runner.allow(1)
    answer = generate(stub, start("a", max_output_tokens=40, policy_revision=5))
    await answer.until("token_chunk")
    nodes = [
        pb.NodeUpdate(path=["acme", "search"], weight=3.0, revision=7),
        pb.NodeUpdate(path=["acme"], weight=9.0, revision=4),  # older than what the request came with
        pb.NodeUpdate(path=["unknown"], weight=2.0, revision=7),
    ]

    await stub.UpdateNodes(pb.UpdateNodesRequest(nodes=nodes))

    stats = await runner.step_until(stub.GetStats(pb.GetStatsRequest()))
    assert [(node.id, node.weight) for node in stats.tenants[0].path] == [("acme", 1.0), ("search", 3.0)]
    runner.release()
    assert (await answer.to_end()).token_ids == expected_tokens(40)


@pytest.mark.parametrize(
    ("node", "field"),
    [
        ({"path": []}, "nodes[1].path"),
        ({"path": ["a/b"]}, "nodes[1].path"),
        ({"path": ["a", ""]}, "nodes[1].path"),
        ({"weight": 0.0}, "nodes[1].weight"),
        ({"weight": -1.0}, "nodes[1].weight"),
        ({"weight": float("nan")}, "nodes[1].weight"),
        ({"weight": float("inf")}, "nodes[1].weight"),
    ],
)
async def test_weights_are_taken_whole_or_not_at_all(stub, node, field):
    good = pb.NodeUpdate(path=["acme"], weight=1.0, revision=1)
    bad = pb.NodeUpdate(**({"path": ["acme"], "weight": 1.0, "revision": 1} | node))

    assert await refused_field(stub.UpdateNodes(pb.UpdateNodesRequest(nodes=[good, bad]))) == field


async def test_classes_are_taken_while_their_requests_run(stub, runner):
    runner.hold()
    runner.allow(1)
    answer = generate(stub, start("a", max_output_tokens=9))
    await answer.until("token_chunk")

    await stub.UpdateClasses(
        pb.UpdateClassesRequest(classes=[pb.PriorityClass(name="default", rank=1, min_share=0.5)], revision=9)
    )

    runner.release()
    assert (await answer.to_end()).token_ids == expected_tokens(9)


@pytest.mark.parametrize(
    ("classes", "field"),
    [
        ([pb.PriorityClass(name="a"), pb.PriorityClass(name="a")], "classes"),
        ([pb.PriorityClass(name="")], "priority_class.name"),
        ([pb.PriorityClass(name="a", min_share=1.5)], "priority_class.min_share"),
    ],
)
async def test_bad_classes_are_refused(stub, classes, field):
    assert await refused_field(stub.UpdateClasses(pb.UpdateClassesRequest(classes=classes, revision=1))) == field


def test_every_preemption_mode_of_the_settings_has_its_word():
    assert {choice.value for choice in PreemptionChoice} == {"auto", "swap", "recompute"}
