"""An output that is held to something which leaves nothing that may follow: the client's error, with what it cost."""

from collections import abc
from pathlib import Path

import grpc
import pytest_asyncio

from engine.core.config import SchedulerConfig
from engine.model.loader import load_model
from engine.runner.model_runner import ModelRunner
from engine.server.backend import Backend
from engine.server.engine_server import EngineServer
from engine.server.serve import load_policies
from engine.settings import read_settings
from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from gateway.store.enums import Dimension
from gateway.store.records import QuotaLimit
from tests.gateway.fake_engine import FakeCall
from tests.gateway.world import Tenant, World, refused
from tests.model import tiny_llama

OUTPUT = QuotaLimit(Dimension.OUTPUT_TOKENS, 1, 3_600_000, 100)
PROBLEM = "leaves no token that may follow what has been written"
ID = "0190a5c5-7f5e-7cc3-8f4e-2f5f6a7b8c9d"
HELD = {
    "output": pb.OutputOptions(format=pb.OutputFormat(regex="[ab]c")),
    "sampling": pb.SamplingOptions(allowed_token_ids=b"ab"),
}
FIELDS = ["spec.output.format.regex", "spec.sampling.allowed_token_ids"]
CONFIG = SchedulerConfig(
    max_num_seqs=4, max_num_batched_tokens=64, block_size=16, num_device_blocks=64, max_model_len=256
)


def stuck(*fields: str, text: bytes = b"ab"):
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(text)
        await call.finish(engine_pb2.FINISH_REASON_ERROR, error=PROBLEM, error_fields=fields)

    return script


async def test_it_is_the_clients_error_by_the_names_of_its_fields_and_billed_as_far_as_it_came(world: World) -> None:
    world.engine.script = stuck("sampling.grammar.regex", "sampling.allowed_token_ids")
    tenant = await world.tenant(limits=(OUTPUT,))
    refusal = await refused(tenant.generate(**HELD))
    (row,) = await world.usage_rows()

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "OUTPUT_CANNOT_GO_ON")
    assert (refusal.fields, refusal.retry) == (FIELDS, None)
    assert refusal.message == f"{FIELDS[0]}: {PROBLEM}; {FIELDS[1]}: {PROBLEM}"
    assert dict(refusal.info.metadata) == {"input_tokens": "2", "output_tokens": "2"}
    assert (row["finish_reason"], row["input_tokens"], row["output_tokens"], row["billed_tokens"]) == ("ERROR", 2, 2, 4)
    assert [limit.remaining for limit in (await tenant.quota_status()).limits] == [98]
    assert world.book.num_reservations == 0


async def test_a_stream_has_what_was_written_before_it_ends_so(world: World, tenant: Tenant) -> None:
    world.engine.script = stuck("sampling.grammar.regex")
    texts: list[str] = []

    async def read() -> None:
        async for message in tenant.stream(**HELD):
            texts.append(message.token_delta.text)  # noqa: PERF401  what came before the error is what is looked at

    refusal = await refused(read())

    assert (refusal.code, refusal.fields) == (grpc.StatusCode.INVALID_ARGUMENT, FIELDS[:1])
    assert "".join(texts) == "ab"


async def test_who_asks_again_under_the_same_id_is_told_the_same_and_pays_once(world: World, tenant: Tenant) -> None:
    world.engine.script = stuck("chat.tools")
    refusals = [await refused(tenant.generate(request_id=ID, **HELD)) for _ in range(2)]

    assert [(refusal.info.reason, refusal.fields) for refusal in refusals] == [
        ("OUTPUT_CANNOT_GO_ON", ["spec.chat.tools"])
    ] * 2
    assert (len(world.engine.calls), len(await world.usage_rows())) == (1, 1)


async def test_an_error_that_no_field_is_to_blame_for_stays_ours(world: World, tenant: Tenant) -> None:
    world.engine.script = stuck()
    refusal = await refused(tenant.generate(**HELD))

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert PROBLEM not in refusal.message


@pytest_asyncio.fixture
async def real_tenant(closed_world: World, tmp_path: Path) -> abc.AsyncIterator[Tenant]:
    """A tenant of a gateway over a real engine with a small random model."""
    settings = read_settings({"listen": f"unix:{tmp_path}/e.sock"})
    server = EngineServer(settings, load_policies(settings), None)
    await server.listen()
    folder = tiny_llama.write_folder(tmp_path / "tiny", tiny_llama.make_model())
    loaded = load_model(folder, dtype="float32", device="cpu")
    await server.open(lambda: Backend(ModelRunner(loaded, CONFIG), loaded.info, CONFIG))
    closed_world.options["engine"] = settings.listen
    await closed_world.open()
    await closed_world.serving()
    yield await closed_world.tenant()
    await closed_world.close()
    await server.drain(grace_s=1)
    await server.close()


async def test_a_real_engine_says_so_of_a_list_that_its_format_leaves(closed_world: World, real_tenant: Tenant) -> None:
    """At the first token nothing is computed; later what was computed is billed. An output that fits ends well."""
    model = closed_world.live._models.resolve("", frozenset(), "")
    letters = {letter: model.tokenizer.encode(letter)[0] for letter in "abc"}

    def asked(allowed: str) -> dict:
        sampling = pb.SamplingOptions(temperature=0, allowed_token_ids=[letters[letter] for letter in allowed])
        return {**HELD, "sampling": sampling}

    early = await refused(real_tenant.generate(**asked("c")))
    unbilled = await closed_world.usage_rows()
    late = await refused(real_tenant.generate(**asked("ab")))
    (row,) = await closed_world.usage_rows()
    fits = await real_tenant.generate(**asked("ac"))

    assert (early.info.reason, early.fields, unbilled) == ("INVALID_FIELD", FIELDS[1:], [])
    assert (late.info.reason, late.fields) == ("OUTPUT_CANNOT_GO_ON", FIELDS)
    assert late.info.metadata["output_tokens"] == "1"
    assert (row["finish_reason"], row["output_tokens"]) == ("ERROR", 1)
    assert (fits.outputs[0].text, fits.outputs[0].finish_reason) == ("ac", pb.FINISH_REASON_STOP)
