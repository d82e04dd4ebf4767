"""An engine that says it is busy: tenants with figures, and requests in its queue."""

from evenflow.engine.v1 import engine_pb2 as pb
from tests.gateway.world import Tenant, World

IDS = tuple(f"0190a000-0000-7000-8000-{number:012}" for number in range(10))


def path_of(tenant: Tenant, weight: float = 1.0) -> list[pb.WeightedNode]:
    return [
        pb.WeightedNode(id=str(tenant.organization_id), weight=weight),
        pb.WeightedNode(id=str(tenant.team_id), weight=weight),
    ]


def stats_of(tenant: Tenant, *, prompt: int = 0, output: int = 0, **figures) -> pb.TenantStats:
    """What it was served in all, with work in the units that policies charge."""
    return pb.TenantStats(
        path=path_of(tenant),
        prefill_tokens=prompt,
        output_tokens=output,
        served_work=prompt + 2 * output,
        **figures,
    )


def request_of(tenant: Tenant, number: int, state: str = "waiting", **figures) -> pb.RequestSummary:
    """Its request with the id IDS[number]."""
    some = {"priority_class": "default", "prompt_tokens": 70, "max_output_tokens": 90, "waited_ns": 1_500_000_000}
    return pb.RequestSummary(
        generation_id=IDS[number], path=path_of(tenant), state=state, **(some | {"age_ns": 2_500_000_000} | figures)
    )


def forget_reading(world: World) -> None:
    """The next page shows what the engines say then: without this, what they said up to a second before."""
    world.forget_readings()


def be_busy(world: World, *tenants: Tenant) -> None:
    """Each of `tenants` has a request that runs and one that waits; the first was served more than the others."""
    forget_reading(world)
    world.engine.tenants = [
        stats_of(
            tenant,
            prompt=1000 * (len(tenants) - index),
            output=400,
            running=1,
            waiting=1,
            lead=120.0 * (len(tenants) - 1 - index),
            device_blocks=5,
        )
        for index, tenant in enumerate(tenants)
    ]
    world.engine.requests = [
        request_of(tenant, 2 * index + offset, state, output_tokens=7 * (state == "running"))
        for index, tenant in enumerate(tenants)
        for offset, state in enumerate(("running", "waiting"))
    ]
