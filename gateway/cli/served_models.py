"""A word about names of models that no engine serves: allowed, for one that comes later, but mostly misspelt."""

from collections import abc

import grpc

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.command import Admin
from gateway.cli.output import stderr


def models_of(*policies: pb.QuotaPolicy) -> list[str]:
    """Every model that the policies name, once."""
    named: dict[str, None] = {}
    for policy in policies:
        named |= dict.fromkeys(limit.model for limit in policy.limits)
        named |= dict.fromkeys(budget.model for budget in policy.budgets)
        named |= dict.fromkeys(weights.model for weights in policy.cost_weights)
    return [model for model in named if model]


def tell_of_unserved(admin: Admin, models: abc.Iterable[str]) -> None:
    """A line on stderr for each of `models` that no engine has; none where the engines cannot be asked."""
    wanted = [model for model in dict.fromkeys(models) if model]
    if not wanted:
        return
    try:
        report = admin.call(admin.stub.GetSystemStatus, pb.GetSystemStatusRequest())
    except grpc.RpcError:
        return  # what was asked for is done; who may not see the engines is told nothing
    served = sorted({engine.model for engine in report.engines if engine.reachable and engine.model})
    for model in wanted:
        if served and model not in served:
            stderr().print(f"note: no engine serves a model {model!r} now; served are: {', '.join(served)}")
