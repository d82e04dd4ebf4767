"""The door's own description is true: generated requests, right and wrong, get the answers that it names."""

import asyncio
from collections import Counter

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from gateway.http.openapi import document
from gateway.http.routes import HTTP_ROUTES
from tests.gateway.fake_engine import MODEL
from tests.gateway.http.clients import Clients
from tests.gateway.world import Tenant, World

NUM_EXAMPLES = 25
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
)


def described() -> dict[str, object]:
    """The description, in which the one model that is served is the only name for one."""
    found = document()
    for schema in found["components"]["schemas"].values():
        if "model" in schema.get("properties", {}):
            schema["properties"]["model"]["enum"] = [MODEL]
    return found


async def test_the_description_is_served_and_names_every_path(shared_clients: Clients) -> None:
    async with httpx2.AsyncClient(base_url=shared_clients.url) as nobody:
        served = (await nobody.get("/openapi.json")).json()

    paths = {(verb.upper(), path) for path, item in served["paths"].items() for verb in item}
    assert paths == {(route.verb, route.path.replace(":path", "")) for route in HTTP_ROUTES}


class Tried:
    """What became of the generated requests of one path."""

    def __init__(self, url: str, tenant: Tenant, path: str) -> None:
        config = SchemathesisConfig.discover()
        config.projects.default.update(base_url=url)
        self._operation = schemathesis.openapi.from_dict(described(), config=config)[path]["POST"]
        self._headers = {"authorization": f"Bearer {tenant.key}"}
        self.statuses: dict[GenerationMode, Counter[int]] = {}

    def run(self, mode: GenerationMode) -> None:
        """Blocks. Fails where an answer is not what the description says."""
        statuses = self.statuses[mode] = Counter[int]()

        @settings(
            max_examples=NUM_EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=self._operation.as_strategy(generation_mode=mode))
        def check(case: schemathesis.Case) -> None:
            # Where it is the key that was made up wrong, ours takes its place, and the request is right.
            is_keyed = any(name.lower() == "authorization" for name in case.headers)
            response = case.call_and_validate(headers=self._headers, checks=list(CHECKS))
            statuses[response.status_code] += mode is GenerationMode.POSITIVE or not is_keyed

        check()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize"])
async def test_generated_requests_get_described_answers(
    shared_world: World, shared_clients: Clients, own_tenant: Tenant, path: str
) -> None:
    tried = Tried(shared_clients.url, own_tenant, path)

    await asyncio.to_thread(tried.run, GenerationMode.POSITIVE)
    await asyncio.to_thread(tried.run, GenerationMode.NEGATIVE)

    right, wrong = tried.statuses[GenerationMode.POSITIVE], tried.statuses[GenerationMode.NEGATIVE]
    assert right[200] >= NUM_EXAMPLES // 8  # of the token ids that are drawn, most are beyond the vocabulary
    assert not wrong[200]
    assert shared_world.is_running
