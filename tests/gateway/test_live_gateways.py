"""How many gateways serve a database, as each of them tells."""

from evenflow.admin.v1 import admin_pb2 as pb
from evenflow.admin.v1.admin_pb2_grpc import AdminServiceStub
from tests.gateway.world import World, eventually


async def test_status_counts_the_gateways_over_the_database(world: World, second_world: World) -> None:
    caller = await world.administrator()
    stub = AdminServiceStub(caller.channel)

    async def counted() -> int:
        status = await stub.GetSystemStatus(pb.GetSystemStatusRequest(), metadata=caller.metadata)
        return status.live_gateways

    await eventually(lambda: world.book.report().num_replicas == 2)
    assert await counted() == 2

    await second_world.close()

    await eventually(lambda: world.book.report().num_replicas == 1)
    assert await counted() == 1
