"""The state of the system: the gateway's report with the tenants' names."""

from importlib.metadata import version

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.store.migrate import head_revision
from tests.admin.service import AdminService


async def test_tenants_are_named_and_an_unknown_one_keeps_its_ids(service: AdminService):
    await service.create_org()
    await service.create_team()

    status = await service.call(service.stub.GetSystemStatus, pb.GetSystemStatusRequest())

    engine, lost = status.engines
    assert [tenant.team for tenant in engine.tenants] == ["organizations/acme/teams/search", "gone/away"]
    assert (engine.reachable, engine.running, engine.waiting, engine.free_device_blocks) == (True, 4, 7, 10)
    assert (lost.reachable, lost.address) == (False, "unix:/gone.sock")


async def test_figures_of_the_gateway_and_the_store_are_told(service: AdminService):
    status = await service.call(service.stub.GetSystemStatus, pb.GetSystemStatusRequest())

    assert status.version == version("evenflow")
    assert status.uptime.ToMilliseconds() == 90_500
    assert status.schema_revision == head_revision()
    assert (status.ledger.waiting_events, status.ledger.oldest.ToMilliseconds()) == (5, 1500)
    assert (status.store_reachable, status.policy_revision, status.live_requests) == (True, 7, 11)


async def test_what_preemption_costs_and_did_is_told_by_engine_and_tenant(service: AdminService):
    status = await service.call(service.stub.GetSystemStatus, pb.GetSystemStatusRequest())

    engine, tenant = status.engines[0], status.engines[0].tenants[0]
    # 63 blocks of 16 tokens hold 1,000: 150 microseconds each way and block, and 250 microseconds a token.
    assert engine.preemption_prices.swap.ToMicroseconds() == 63 * 150
    assert engine.preemption_prices.recompute.ToMicroseconds() == 250_000
    assert dict(engine.scheduling_options) == {"mode": "strict"}
    assert (engine.swapping, engine.fenced_device_blocks, engine.num_swaps, engine.num_pauses) == (2, 3, 2, 8)
    assert (engine.lost_steps, engine.requeues) == (2, 5)
    assert (tenant.share, tenant.weight_share, tenant.lead) == (0.25, 0.5, 31.0)
    assert (tenant.num_pauses, tenant.num_swaps_out, tenant.num_swaps_in, tenant.borrowed_tokens) == (6, 4, 3, 17)
    assert (tenant.copied_bytes, tenant.wait.ToMilliseconds()) == (4096, 1500)


async def test_what_the_cache_and_guesses_save_is_told_by_engine_and_tenant(service: AdminService):
    status = await service.call(service.stub.GetSystemStatus, pb.GetSystemStatusRequest())

    engine, tenant = status.engines[0], status.engines[0].tenants[0]
    assert (engine.prefix_caching, engine.cached_prompt_tokens, engine.computed_prompt_tokens) == (True, 900, 600)
    assert (engine.cached_device_blocks, engine.cached_host_blocks, engine.evicted_blocks) == (6, 2, 21)
    assert (engine.speculation, engine.draft_model) == ("draft", "small")
    assert (engine.drafted_tokens, engine.accepted_draft_tokens) == (400, 100)
    assert (tenant.cached_prompt_tokens, tenant.cached_blocks) == (300, 5)
    assert (tenant.drafted_tokens, tenant.accepted_draft_tokens) == (40, 30)


async def test_usage_that_was_lost_is_told_by_gateway_and_engine(service: AdminService):
    status = await service.call(service.stub.GetSystemStatus, pb.GetSystemStatusRequest())

    assert (status.ledger.dropped_events, status.ledger.damaged_bytes) == (2, 99)
    assert (status.engines[0].unacknowledged_usage, status.engines[0].dropped_usage) == (6, 3)


async def test_pages_for_prometheus_are_told(service: AdminService):
    status = await service.call(service.stub.GetSystemStatus, pb.GetSystemStatusRequest())

    assert (status.metrics_address, status.engines[0].metrics_address) == ("127.0.0.1:9100", "127.0.0.1:9101")
