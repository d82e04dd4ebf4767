"""A real Prometheus over real processes: what clients saw is what its queries return, and every query is answered."""

import asyncio
from collections import abc
from contextlib import suppress
from uuid import uuid4

import asyncpg  # type: ignore[import-untyped]  # it ships no types
import pytest
import pytest_asyncio

from gateway.api_key import parse
from tests.conftest import TEMPLATE, with_database
from tests.programs import find_program
from tests.telemetry.fleet import Fleet, fleet, read
from tests.telemetry.queries import board_queries, exported_names, rules

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(400), pytest.mark.shared_start]

NUM_EACH, NUM_TOKENS, NUM_HTTP = 10, 30, 3
NUM_LIMITED = 5
"""Two more than its limit."""
SCRAPED_S = 60  # far more than several scrapes take
MAY_BE_EMPTY = {"engine: A new request would wait"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_url: str, template_url: str
) -> abc.AsyncIterator[Fleet]:
    """A fleet that has served: two tenants at once, over both doors, and one up to its limit and beyond."""
    program = find_program("prometheus")
    name = f"test_{uuid4().hex}"
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    await connection.close()
    async with fleet(tmp_path_factory.mktemp("fleet"), with_database(template_url, name), program) as running:
        tenants = ("acme/search", "acme/batch")
        await asyncio.gather(
            *(running.generate(tenant, NUM_TOKENS) for tenant in tenants for _ in range(NUM_EACH)),
            *(running.complete("acme/search", NUM_TOKENS) for _ in range(NUM_HTTP)),
        )
        for _ in range(NUM_LIMITED):
            await running.generate("acme/limited", 2)
        await running.until("sum(evenflow_requests_total)", running.answers.total() - num_denied(running))
        yield running


def num_denied(running: Fleet) -> int:
    return running.answers["RESOURCE_EXHAUSTED", "acme/limited"]


async def test_requests_and_tokens_are_those_that_clients_had(running: Fleet):
    served = {tenant: running.answers["OK", tenant] + running.answers["HTTP", tenant] for tenant in running.keys}

    requests = {
        one["metric"]["tenant"]: one for one in await running.query("sum by (tenant) (evenflow_requests_total)")
    }
    tokens = await running.query('sum by (tenant) (evenflow_tokens_total{kind="output"})')

    assert served["acme/search"] == NUM_EACH + NUM_HTTP
    assert {tenant: float(one["value"][1]) for tenant, one in requests.items()} == served
    assert {one["metric"]["tenant"]: float(one["value"][1]) for one in tokens} == running.output_tokens


async def test_both_gateways_served_and_none_tells_of_the_others_work(running: Fleet):
    by_gateway = await running.query("sum by (job) (evenflow_requests_total)")

    assert {one["metric"]["job"] for one in by_gateway} == {"gateway0", "gateway1"}
    assert sum(float(one["value"][1]) for one in by_gateway) == running.answers.total() - num_denied(running)


async def test_denials_are_counted_at_the_limit_and_at_the_door(running: Fleet):
    labels = 'tenant="acme/limited"'

    assert num_denied(running) >= NUM_LIMITED - 3
    await running.until(f"sum(evenflow_quota_denials_total{{{labels}}})", num_denied(running))
    await running.until(f'sum(evenflow_admissions_total{{outcome="refused", {labels}}})', num_denied(running))
    exhausted = 'sum(rpc_server_call_duration_seconds_count{rpc_response_status_code="RESOURCE_EXHAUSTED"})'
    await running.until(exhausted, num_denied(running))


async def test_each_door_counts_its_own_calls(running: Fleet):
    route = 'http_route="/v1/completions", http_response_status_code="200"'
    method = 'rpc_method="evenflow.inference.v1.GenerationService/Generate", rpc_response_status_code="OK"'

    await running.until(f"sum(http_server_request_duration_seconds_count{{{route}}})", NUM_HTTP)
    num_ok = sum(number for (status, _), number in running.answers.items() if status == "OK")
    await running.until(f"sum(rpc_server_call_duration_seconds_count{{{method}}})", num_ok)


async def test_every_generation_has_its_times_in_the_histograms(running: Fleet):
    number = running.answers.total() - num_denied(running)

    for histogram in ("gen_ai_server_request_duration_seconds", "gen_ai_server_time_to_first_token_seconds"):
        await running.until(f"sum({histogram}_count)", number)
        await running.until(f'sum({histogram}_bucket{{le="+Inf"}})', number)
    await running.until("sum(evenflow_queue_wait_seconds_count)", number)
    await running.until('sum(evenflow_overhead_seconds_count{stage="settle"})', number)
    await running.until('sum(evenflow_auth_cache_total{result=~"hit|miss"})', running.answers.total())


async def test_engine_tells_the_same_tokens_and_what_it_took_to_make_them(running: Fleet):
    expected = running.output_tokens.total()
    await running.until('sum(evenflow_engine_tokens_total{kind="output"})', expected)

    tenants = 'sum(max by (engine, tenant) (evenflow_tenant_tokens_total{kind="output"}))'
    await running.until(tenants, expected)
    await running.until("evenflow_engine_finished_requests_total", running.answers.total() - num_denied(running))
    num_steps = await running.number("evenflow_engine_step_seconds_count")
    assert num_steps >= NUM_TOKENS
    assert await running.number("evenflow_engine_step_tokens_sum") >= expected
    # More than ten requests of eight blocks did not fit the pool at once.
    assert await running.number('sum(evenflow_engine_preemptions_total{mode=~"swap|recompute"})') > 0
    await running.until("sum(evenflow_engine_blocks{pool='device'})", 24)


async def test_every_query_of_the_boards_is_answered(running: Fleet):
    """Rates are, once every page was scraped twice."""
    with suppress(TimeoutError):
        async with asyncio.timeout(SCRAPED_S):
            while await unanswered(running):  # noqa: ASYNC110 - Prometheus announces nothing
                await asyncio.sleep(0.2)

    assert await unanswered(running) == set()


async def unanswered(running: Fleet) -> set[str]:
    """Panels that show nothing of what the fleet has served."""
    answers = {panel: await running.query(query) for panel, query in board_queries()}
    assert len(answers) > 50
    empty = {panel for panel, answer in answers.items() if not answer}
    return {panel for panel in empty if panel.startswith(("service: Time", "engine: "))} - MAY_BE_EMPTY


async def test_every_rule_is_evaluated(running: Fleet):
    for rule in rules():
        await running.query(rule["expr"])
    assert await running.query('ALERTS{alertstate="firing"}') == []
    await running.until("count(tenant:evenflow_requests:waiting) > bool 0", 1)


async def test_no_page_holds_a_key_and_every_name_on_it_is_known(running: Fleet):
    known = exported_names()

    for address in running.pages.values():
        page = await asyncio.to_thread(read, f"http://{address}/metrics")
        for key in running.keys.values():
            assert key not in page
            assert parse(key).public_id not in page
        names = {line.split("{")[0].split(" ")[0] for line in page.splitlines() if line and not line.startswith("#")}
        assert names <= known
