"""What `CancelGeneration` takes for an id."""

from uuid import UUID

import grpc
import pytest

from tests.gateway.calls import rest_of
from tests.gateway.fake_engine import begun
from tests.gateway.world import Tenant, World, refused


async def test_more_ids_than_can_be_cancelled_at_once(shared_tenant: Tenant) -> None:
    ids = [str(UUID(int=n)) for n in range(1001)]
    refusal = await refused(shared_tenant.cancel(*ids))

    assert refusal.fields == ["generation_ids"]
    assert (await shared_tenant.cancel(*ids[:1000])).cancelled_count == 0


@pytest.mark.parametrize("text", ["", "x", "\0", "x" * 2**20])
async def test_what_is_no_id_cannot_be_cancelled(shared_world: World, shared_tenant: Tenant, text: str) -> None:
    shared_world.engine.script = begun
    stream = shared_tenant.stream()
    generation_id = (await stream.read()).admission.generation_id

    refusal = await refused(shared_tenant.cancel(generation_id, text))

    assert (refusal.code, refusal.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["generation_ids[1]"])
    assert (await shared_tenant.cancel(generation_id.upper())).cancelled_count == 1
    await rest_of(stream)
