"""A run that uses everything that is to stay secret, through every door, in success, refusal and failure.

`SecretRun.secrets` says what each is; `SecretRun.pages` are the console's, without the answers that made a key.
"""

import json
import secrets
from collections import abc
from dataclasses import dataclass, field

import grpc
import httpx2

from evenflow.admin.v1 import admin_pb2 as pb
from evenflow.admin.v1.admin_pb2_grpc import AdminServiceStub
from evenflow.inference.v1 import generation_pb2
from evenflow.inference.v1.generation_pb2_grpc import GenerationServiceStub
from gateway import api_key
from tests.admin.service import bearer
from tests.gateway.console.visitors import Visitor, hidden_fields

TEAM = "organizations/acme/teams/search"
PAGES = (
    "overview",
    "tenants",
    "tenants/acme",
    "tenants/acme/search",
    "tenants/acme/search/policy",
    "platform-keys",
    "classes",
    "queue",
    "denials",
    "usage",
    "usage.csv",
    "audit",
    "settings",
)
SHOWN_LENGTH = 16


@dataclass(frozen=True)
class Place:
    """Where a gateway is, and the key of its administrator."""

    grpc: str
    http: str
    admin_key: str
    model: str


@dataclass
class SecretRun:
    """Use as: `take`."""

    place: Place
    secrets: dict[str, str] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)

    async def take(self) -> None:
        """Everything was tried, with fresh secrets."""
        self.secrets["prompt"] = f"Recipe{secrets.token_hex(12)}"
        self._keep("admin key", self.place.admin_key)
        async with grpc.aio.insecure_channel(self.place.grpc) as channel:
            key = await self._make_tenant(AdminServiceStub(channel))
            await self._generate(GenerationServiceStub(channel), key)
            wrong = api_key.generate().text
            self._keep("wrong key", wrong)
            for credential in (wrong, wrong[:-1] + "!", f"{wrong} {wrong}"):
                await self._generate(GenerationServiceStub(channel), credential, may_work=False)
        async with httpx2.AsyncClient(base_url=self.place.http, timeout=60) as client:
            await self._chat(client, key)
            for credential in (wrong, wrong[:-1] + "!"):
                await self._chat(client, credential, may_work=False)
            await self._look_around(Visitor(client, self.place.http), wrong)

    def _keep(self, name: str, key: str) -> None:
        self.secrets[name] = key.split("_")[3]

    async def _make_tenant(self, stub: AdminServiceStub) -> str:
        """A key that has been rotated once, through the Admin API."""
        metadata = bearer(self.place.admin_key)
        await stub.CreateOrganization(
            pb.CreateOrganizationRequest(organization_id="acme", organization=pb.Organization()), metadata=metadata
        )
        await stub.CreateTeam(
            pb.CreateTeamRequest(parent="organizations/acme", team_id="search", team=pb.Team()), metadata=metadata
        )
        made = await stub.CreateApiKey(pb.CreateApiKeyRequest(parent=TEAM, api_key=pb.ApiKey()), metadata=metadata)
        self._keep("first secret", made.secret)
        rotated = await stub.RotateApiKey(pb.RotateApiKeyRequest(name=made.name), metadata=metadata)
        self._keep("second secret", rotated.secret)
        return rotated.secret

    async def _generate(self, stub: GenerationServiceStub, key: str, *, may_work: bool = True) -> None:
        """Whole, streamed, asked about, repeated, and refused for one reason and another."""
        metadata, prompt = bearer(key), self.secrets["prompt"]
        stopping = generation_pb2.StoppingOptions(max_output_tokens=3, stop=[prompt])
        chat = generation_pb2.ChatPrompt(messages=[generation_pb2.ChatMessage(role="user", content=prompt)])
        good = generation_pb2.GenerationSpec(text=prompt, stopping=stopping)
        asks: list[abc.Callable[[], abc.Awaitable[object]]] = [
            lambda: stub.Generate(generation_pb2.GenerateRequest(spec=good), metadata=metadata),
            lambda: stub.Generate(
                generation_pb2.GenerateRequest(spec=generation_pb2.GenerationSpec(chat=chat, stopping=stopping)),
                metadata=metadata,
            ),
            lambda: _read(stub.StreamGenerate(generation_pb2.StreamGenerateRequest(spec=good), metadata=metadata)),
            lambda: stub.CountTokens(generation_pb2.CountTokensRequest(text=prompt), metadata=metadata),
        ]
        for ask in asks:
            assert await _works(ask()) is may_work
        role = generation_pb2.ChatMessage(role=prompt, content="x")
        for refused in (
            generation_pb2.GenerationSpec(text=prompt, model="nobody"),
            generation_pb2.GenerationSpec(text=prompt * 5000, stopping=stopping),
            generation_pb2.GenerationSpec(chat=generation_pb2.ChatPrompt(messages=[role])),
            generation_pb2.GenerationSpec(text=prompt, sampling=generation_pb2.SamplingOptions(temperature=-1)),
        ):
            assert not await _works(stub.Generate(generation_pb2.GenerateRequest(spec=refused), metadata=metadata))

    async def _chat(self, client: httpx2.AsyncClient, key: str, *, may_work: bool = True) -> None:
        """The same over HTTP."""
        headers, prompt = {"authorization": f"Bearer {key}"}, self.secrets["prompt"]
        good = {"model": self.place.model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 3}
        for body in (good, good | {"stream": True}, good | {"user": "jo"}):
            answer = await client.post("/v1/chat/completions", json=body, headers=headers)
            assert answer.is_success is may_work, answer.text
        for refused in (
            json.dumps(good | {"temperature": prompt}),
            json.dumps(good | {"functions": [{"name": prompt}]}),
            json.dumps(good | {"messages": [{"role": prompt, "content": prompt}]}),
            f'{{"messages": "{prompt}',
        ):
            answer = await client.post("/v1/chat/completions", content=refused, headers=headers)
            assert answer.is_client_error, answer.text
        await client.post("/tokenize", json={"model": self.place.model, "prompt": prompt}, headers=headers)

    async def _look_around(self, visitor: Visitor, wrong: str) -> None:
        """Signed in after a mistake, a key made and rotated in the console, and every page looked at afterwards."""
        refused = await visitor.sign_in(wrong)
        assert refused.status_code == 401
        self.pages["refused login"] = refused.text
        assert (await visitor.sign_in(self.place.admin_key)).status_code == 303
        self.secrets["session"] = visitor.client.cookies["evenflow_session"]
        at = "/console/tenants/acme/search/keys"
        made = await self._key_form(visitor, f"{at}/new", {"scopes": "inference", "lifetime": "1"}, "console's key")
        await self._key_form(visitor, f"{at}/{made}/rotate", {"grace": "1"}, "console's second key")
        for page in (*PAGES, f"tenants/acme/search/keys/{made}"):
            answer = await visitor.get(f"/console/{page}")
            assert answer.status_code == 200, (page, answer.text)
            self.pages[page] = answer.text

    async def _key_form(self, visitor: Visitor, path: str, fields: dict[str, str], name: str) -> str:
        """The public id of the key whose secret the form's answer shows."""
        form = await visitor.get(path)
        answer = await visitor.send(path, hidden_fields(form) | fields)
        assert answer.status_code == 200, answer.text
        (shown,) = set(api_key._FORMAT.findall(answer.text))
        self.secrets[name] = shown[2]
        again = await visitor.send(path, hidden_fields(form) | fields)  # as a reload does
        self.pages[f"{name}, again"] = again.text
        return shown[1]


async def _read(stream: abc.AsyncIterable[object]) -> None:
    async for _ in stream:
        pass


async def _works(ask: abc.Awaitable[object]) -> bool:
    try:
        await ask
    except grpc.aio.AioRpcError as error:
        code = error.code()
    else:
        return True
    assert code is not grpc.StatusCode.INTERNAL
    return False
