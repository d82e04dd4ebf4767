"""A whole gateway in the test's own event loop: real Postgres, real sockets, a scripted engine, and clients of it."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import grpc
from sqlalchemy import text

from evenflow.inference.v1 import generation_pb2 as pb
from evenflow.inference.v1 import generation_pb2_grpc, model_pb2_grpc, quota_pb2, quota_pb2_grpc
from gateway import api_key
from gateway.server import Gateway
from gateway.servicer.ending import EndCause
from gateway.settings import load_settings
from gateway.store.changes import Change
from gateway.store.db import Database
from gateway.store.enums import KeyScope
from gateway.store.keys import create_key
from gateway.store.organizations import create_organization
from gateway.store.quota_policies import update_quota_policy
from gateway.store.records import (
    ApiKeySettings,
    KeySecret,
    OrganizationSettings,
    QuotaLimit,
    QuotaPolicySettings,
    ResourcePath,
    TeamSettings,
)
from gateway.store.teams import create_team
from gateway.telemetry import Telemetry
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.refusals import Refusal, refusal_of

PEPPER = "pepper-of-the-tests-0123456789"
CHANGE = Change("apiKeys/tests")


async def refused(call) -> Refusal:
    """How `call` (an awaitable or a stream) is refused."""
    try:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return refusal_of(error)
    raise AssertionError("the call was not refused")


@dataclass
class Tenant:
    """A team with one key, and stubs that use it."""

    path: ResourcePath
    organization_id: UUID
    team_id: UUID
    key_id: UUID
    public_id: str
    key: str
    channel: grpc.aio.Channel

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.key}"),)

    def generate(self, timeout: float | None = None, metadata=(), **spec):
        stub = generation_pb2_grpc.GenerationServiceStub(self.channel)
        request = pb.GenerateRequest(spec=make_spec(**spec))
        return stub.Generate(request, metadata=(*self.metadata, *metadata), timeout=timeout)

    def stream(self, timeout: float | None = None, metadata=(), **spec):
        stub = generation_pb2_grpc.GenerationServiceStub(self.channel)
        request = pb.StreamGenerateRequest(spec=make_spec(**spec))
        return stub.StreamGenerate(request, metadata=(*self.metadata, *metadata), timeout=timeout)

    def cancel(self, *generation_ids: str):
        stub = generation_pb2_grpc.GenerationServiceStub(self.channel)
        request = pb.CancelGenerationRequest(generation_ids=generation_ids)
        return stub.CancelGeneration(request, metadata=self.metadata)

    def count_tokens(self, **fields):
        stub = generation_pb2_grpc.GenerationServiceStub(self.channel)
        return stub.CountTokens(pb.CountTokensRequest(**fields), metadata=self.metadata)

    def check_admission(self, **spec):
        stub = generation_pb2_grpc.GenerationServiceStub(self.channel)
        return stub.CheckAdmission(pb.CheckAdmissionRequest(spec=make_spec(**spec)), metadata=self.metadata)

    async def quota_status(self) -> quota_pb2.QuotaStatus:
        stub = quota_pb2_grpc.QuotaServiceStub(self.channel)
        return (await stub.GetQuotaStatus(quota_pb2.GetQuotaStatusRequest(), metadata=self.metadata)).status

    def watch_quota_status(self):
        stub = quota_pb2_grpc.QuotaServiceStub(self.channel)
        return stub.WatchQuotaStatus(quota_pb2.WatchQuotaStatusRequest(), metadata=self.metadata)

    @property
    def models(self):
        return model_pb2_grpc.ModelServiceStub(self.channel)


def make_spec(*, text: str | None = "hi", **fields) -> pb.GenerationSpec:
    """A valid spec: two input tokens, eight output tokens at most, unless told otherwise."""
    stopping = {"max_output_tokens": 8} | fields.pop("stopping", {})
    if stopping["max_output_tokens"] is None:
        del stopping["max_output_tokens"]
    prompt = {} if {"chat", "token_ids"} & fields.keys() or text is None else {"text": text}
    return pb.GenerationSpec(**prompt, stopping=pb.StoppingOptions(**stopping), **fields)


class World:
    """The parts of one test. `gateway` runs between `open` and `close`."""

    def __init__(
        self, engine: FakeEngine, database: Database, database_url: str, telemetry: Telemetry, data_dir: Path
    ) -> None:
        self.engine = engine
        self.database = database
        self.database_url = database_url
        self.telemetry = telemetry
        self.data_dir = data_dir
        self.options: dict[str, object] = {}
        self.gateway: Gateway | None = None
        self._background: asyncio.Task[None] | None = None
        self._num_unnamed = 0
        self._channels: list[grpc.aio.Channel] = []

    @property
    def live(self) -> Gateway:
        assert self.gateway is not None
        return self.gateway

    @property
    def book(self):
        return self.live._admission._quota

    @property
    def is_running(self) -> bool:
        """Whether everything in the background still goes on."""
        return self._background is not None and not self._background.done()

    @property
    def ledger(self):
        return self.live._ledger

    @property
    def cache(self):
        return self.live._cache

    @property
    def http_state(self):
        """What the HTTP server keeps: its connections, and the tasks that answer them."""
        return self.live._http._state

    async def denials_written(self) -> None:
        """Every refusal so far is in the database."""
        await self.live._denials.flush()

    def forget_readings(self) -> None:
        """The console's sampler asks the engines anew."""
        self.live._sampler._reading = None

    async def open(self) -> None:
        settings = load_settings(
            **{
                "listen": "127.0.0.1:0",
                "engine": self.engine.address,
                "database_url": self.database_url,
                "pepper": PEPPER,
                "data_dir": self.data_dir,
                **self.options,
            }
        )
        self.gateway = Gateway(settings, self.telemetry)
        await self.gateway.start()
        self._background = asyncio.create_task(self.gateway.run())

    async def close(self) -> None:
        if self.gateway is None:
            return
        for channel in self._channels:
            await channel.close()
        assert self._background is not None
        self._background.cancel()
        await asyncio.wait([self._background])
        await self.gateway.close()
        self.gateway = None

    async def serving(self) -> None:
        """Return when the gateway has found the engine."""
        await eventually(lambda: self.live._models.is_serving)

    async def settled(self) -> None:
        """Return when nothing runs any more and everything is in the ledger's table."""
        await eventually(lambda: not self.live.num_live_requests and not self.ledger.num_waiting)

    async def renew(self) -> None:
        """For the next of several tests: nothing that ran before goes on, and the engine is as it was made."""
        for generation in self.live._live:
            generation.cancel(EndCause.ADMINISTRATOR)
        await eventually(lambda: not self.live.num_live_requests)
        await self.serving()
        self.engine.renew()

    async def usage_rows(self, tenant: Tenant | None = None) -> list[dict[str, object]]:
        """The ledger's table, or the tenant's part of it, once nothing runs any more, oldest first."""
        await self.settled()
        async with self.database.session() as session:
            rows = await session.execute(text("SELECT * FROM usage_event ORDER BY generation_id"))
            return [dict(row) for row in rows.mappings() if tenant is None or row["team_id"] == tenant.team_id]

    def channel(self) -> grpc.aio.Channel:
        # Its own connection: what one client does must not show at another one.
        channel = grpc.aio.insecure_channel(self.live.address, options=(("grpc.use_local_subchannel_pool", 1),))
        self._channels.append(channel)
        return channel

    async def tenant(
        self,
        slug: str | None = None,
        limits: tuple[QuotaLimit, ...] = (),
        key: ApiKeySettings | None = None,
        team: TeamSettings | None = None,
    ) -> Tenant:
        """A new organization, team and key, known to the gateway; the first without a name is `acme`."""
        if slug is None:
            slug = f"acme-{self._num_unnamed}" if self._num_unnamed else "acme"
            self._num_unnamed += 1
        path, above = ResourcePath(slug, "search"), ResourcePath(slug)
        organization = await create_organization(self.database, CHANGE, above, OrganizationSettings())
        created = await create_team(self.database, CHANGE, path, team or TeamSettings())
        if limits:
            await self.limit(path, limits)
        return await self.key(path, organization.id, created.id, key)

    async def key(
        self, path: ResourcePath, organization_id: UUID, team_id: UUID, settings: ApiKeySettings | None = None
    ) -> Tenant:
        """One more key of a team."""
        fresh = api_key.generate()
        secret = KeySecret(api_key.digest(PEPPER.encode(), fresh.secret), 1)
        at = ResourcePath(path.organization, path.team, fresh.public_id)
        record = await create_key(self.database, CHANGE, at, settings or ApiKeySettings(), secret)
        await self.cache.refresh()
        return Tenant(at, organization_id, team_id, record.id, fresh.public_id, fresh.text, self.channel())

    async def administrator(self) -> Tenant:
        """A platform key."""
        fresh = api_key.generate()
        secret = KeySecret(api_key.digest(PEPPER.encode(), fresh.secret), 1)
        at = ResourcePath(None, None, fresh.public_id)
        record = await create_key(self.database, CHANGE, at, ApiKeySettings(scopes=(KeyScope.ADMIN,)), secret)
        await self.cache.refresh()
        return Tenant(at, UUID(int=0), UUID(int=0), record.id, fresh.public_id, fresh.text, self.channel())

    async def limit(self, path: ResourcePath, limits: tuple[QuotaLimit, ...]) -> None:
        """The default policy at `path` has these limits."""
        await self.policy(path, QuotaPolicySettings(limits=limits))

    async def policy(self, path: ResourcePath, settings: QuotaPolicySettings) -> None:
        """The default policy at `path` is this one."""
        await update_quota_policy(self.database, CHANGE, path, "default", lambda _: settings)
        await self.cache.refresh()


async def eventually(holds) -> None:
    """Let the event loop turn until `holds()`; the test's own time limit ends a wait that is in vain."""
    while not holds():  # noqa: ASYNC110 - what is waited for lies in parts that announce nothing
        await asyncio.sleep(0.002)
