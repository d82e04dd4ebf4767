"""Two tenants' clients: what they send, and what they see of it.

Open loop: a request is sent when it is due, whatever became of those before it, and its wait counts from then.
Prompts are random token ids, so that lengths are exact and nothing is shared; the same seed makes the same traffic.
"""

import asyncio
import math
import random
import time
from collections import abc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.cli.connection import Metadata
from gateway.cli.demo.sizes import BATCH, CHAT, SHORT_INTERVAL_S, Shape, Sizes
from gateway.cli.errors import read_refusal

if TYPE_CHECKING:
    from evenflow.admin.v1.admin_pb2 import TenantStatus
    from evenflow.inference.v1.generation_pb2_grpc import GenerationServiceAsyncStub

SEED = 20240705
# Smaller ids are special tokens and single bytes in the usual vocabularies.
FIRST_PLAIN_TOKEN = 1000


@dataclass(slots=True)
class Experience:
    """What one tenant's clients have seen. Written by its own requests only; times in seconds."""

    num_waiting: int = 0
    num_running: int = 0
    num_finished: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    first_tokens_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    finished_s: float = 0.0

    def begin(self, waited_s: float, num_prompt_tokens: int) -> None:
        """A request that was waiting has got its first token."""
        self.first_tokens_s.append(waited_s)
        self.num_prompt_tokens += num_prompt_tokens
        self.num_waiting -= 1
        self.num_running += 1

    def end(self, *, is_waiting: bool) -> None:
        """A request has ended, well or not."""
        if is_waiting:
            self.num_waiting -= 1
        else:
            self.num_running -= 1

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    def ttft_s(self, share: float) -> float | None:
        """The time to the first token that `share` of the requests stayed within; None before the first."""
        ordered = sorted(self.first_tokens_s)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


class Clients:
    """Everybody who talks to the gateway in the demo: `metadata` holds each tenant's key."""

    def __init__(
        self, stub: "GenerationServiceAsyncStub", metadata: abc.Mapping[str, Metadata], vocabulary_size: int
    ) -> None:
        self._stub = stub
        self._metadata = metadata
        self._vocabulary_size = vocabulary_size

    def prompt(self, draw: random.Random, shape: Shape) -> list[int]:
        """Plain tokens that no other prompt begins with."""
        return [draw.randrange(FIRST_PLAIN_TOKEN, self._vocabulary_size) for _ in range(shape.num_prompt_tokens)]

    async def send(
        self, tenant: str, prompt: abc.Sequence[int], num_output_tokens: int, seen: Experience, due_s: float
    ) -> None:
        """One request has run to its end; `seen` has what came of it, its wait counted from `due_s`."""
        is_waiting = True
        seen.num_waiting += 1
        call = self._stub.StreamGenerate(_request(prompt, num_output_tokens), metadata=self._metadata[tenant])
        try:
            async for message in call:
                if not message.HasField("token_delta"):
                    continue
                if is_waiting:
                    is_waiting = False
                    seen.begin(time.monotonic() - due_s, len(prompt))
                seen.num_output_tokens += len(message.token_delta.token_ids)
            seen.num_finished += 1
        except grpc.aio.AioRpcError as error:
            seen.failures.append(str(read_refusal(error)))
        finally:
            call.cancel()
            seen.end(is_waiting=is_waiting)


class Run:
    """The same traffic under one policy."""

    def __init__(self, clients: Clients, sizes: Sizes) -> None:
        self._clients = clients
        self._sizes = sizes
        self._began_s = time.monotonic()
        self.experiences = {BATCH: Experience(), CHAT: Experience()}
        # What the engine says that it did to each tenant; filled in when the run is over.
        self.figures: abc.Mapping[str, TenantStatus] = {}
        # Tokens of the short requests, prompt and output, by the time when the last long one had ended.
        self.num_tokens_beside_flood = 0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    async def play(self) -> None:
        """All long requests at once, a short one every second, until the last has ended."""
        draw = random.Random(SEED)  # noqa: S311 - traffic, not secrets
        self._began_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._sizes.num_long):
                group.create_task(self._send(BATCH, draw, self._sizes.long, 0.0))
            for number in range(self._sizes.num_short):
                group.create_task(self._send(CHAT, draw, self._sizes.short, number * SHORT_INTERVAL_S))

    async def _send(self, tenant: str, draw: random.Random, shape: Shape, due_s: float) -> None:
        prompt = self._clients.prompt(draw, shape)
        await asyncio.sleep(due_s - self.elapsed_s)
        seen = self.experiences[tenant]
        await self._clients.send(tenant, prompt, shape.num_output_tokens, seen, self._began_s + due_s)
        seen.finished_s = self.elapsed_s
        if tenant == BATCH:
            self.num_tokens_beside_flood = self.experiences[CHAT].num_tokens


def _request(prompt: abc.Sequence[int], num_output_tokens: int) -> pb.StreamGenerateRequest:
    return pb.StreamGenerateRequest(
        spec=pb.GenerationSpec(
            token_ids=pb.TokenPrompt(ids=prompt),
            stopping=pb.StoppingOptions(max_output_tokens=num_output_tokens, ignore_eos=True),
            output=pb.OutputOptions(token_ids=True),
        )
    )
