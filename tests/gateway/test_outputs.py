"""Formats, choices of tokens and prompts' log-probabilities over gRPC."""

import asyncio
from collections import abc

import grpc
import pytest

from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from gateway.engine_client import TokenLogprobs
from gateway.servicer.prompt_scores import PromptScores, ScoredToken
from tests.gateway.fake_engine import FakeCall, Script, hello
from tests.gateway.world import Tenant, World, refused


def entry(logprob: float, *top: int) -> engine_pb2.TokenLogprobs:
    return engine_pb2.TokenLogprobs(logprob=logprob, top_token_ids=top, top_logprobs=[-0.5] * len(top))


@pytest.fixture
def scoring(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Tells of the prompt in two messages; the second one follows when the gateway has read the first."""
    is_read, take = asyncio.Event(), PromptScores.take

    def noted(scores: PromptScores, entries: abc.Sequence[TokenLogprobs]) -> tuple[ScoredToken, ...]:
        is_read.set()
        return take(scores, entries)

    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.score([entry(-1.0, ord("e")), entry(-2.0, ord("l"))])
        await is_read.wait()
        await call.score([entry(-3.0, ord("l"))])
        await call.emit(b"x")
        await call.finish()

    monkeypatch.setattr(PromptScores, "take", noted)
    return script


async def test_each_way_to_say_a_format_reaches_the_engine(shared_world: World, shared_tenant: Tenant) -> None:
    formats = [
        pb.OutputFormat(json_object=True),
        pb.OutputFormat(json_schema='{"type": "object"}'),
        pb.OutputFormat(regex="a+"),
        pb.OutputFormat(lark='start: "a"'),
    ]
    for each in formats:
        await shared_tenant.generate(output=pb.OutputOptions(format=each))
    sampling = pb.SamplingOptions(logit_bias={9: -1.5}, allowed_token_ids=[9, 10])
    await shared_tenant.generate(sampling=sampling)

    grammars = [call.start.sampling.grammar for call in shared_world.engine.calls]
    assert [each.WhichOneof("source") for each in grammars] == ["json_schema", "json_schema", "regex", "lark", None]
    assert grammars[0] == grammars[1]
    told = shared_world.engine.calls[-1].start.sampling
    assert (list(told.biased_token_ids), list(told.biases), list(told.allowed_token_ids)) == ([9], [-1.5], [9, 10])


async def test_log_probabilities_of_the_prompt_are_told_whole(
    shared_world: World, shared_tenant: Tenant, scoring: Script
) -> None:
    shared_world.engine.script = scoring
    response = await shared_tenant.generate(text="hell", output=pb.OutputOptions(prompt_logprobs=1))

    (output,) = response.outputs
    assert [(each.token, each.logprob) for each in output.prompt_logprobs] == [("e", -1.0), ("l", -2.0), ("l", -3.0)]
    assert [top.token for each in output.prompt_logprobs for top in each.top] == ["e", "l", "l"]
    assert (output.text, list(output.logprobs)) == ("x", [])
    assert response.timings.prefill.ToNanoseconds() > 0


async def test_log_probabilities_of_the_prompt_are_streamed_once(
    shared_world: World, shared_tenant: Tenant, scoring: Script
) -> None:
    shared_world.engine.script = scoring
    deltas = [
        message.token_delta
        async for message in shared_tenant.stream(text="hell", output=pb.OutputOptions(prompt_logprobs=1))
        if message.HasField("token_delta")
    ]

    assert [each.logprob for delta in deltas for each in delta.prompt_logprobs] == [-1.0, -2.0, -3.0]
    assert "".join(delta.text for delta in deltas) == "x"
    assert deltas[-1].output_tokens_so_far == 1


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"output": pb.OutputOptions(format=pb.OutputFormat())}, "spec.output.format"),
        ({"output": pb.OutputOptions(format=pb.OutputFormat(json_schema="[]"))}, "spec.output.format.json_schema"),
        ({"output": pb.OutputOptions(format=pb.OutputFormat(json_schema="{"))}, "spec.output.format.json_schema"),
        ({"output": pb.OutputOptions(format=pb.OutputFormat(regex=""))}, "spec.output.format.regex"),
        ({"output": pb.OutputOptions(format=pb.OutputFormat(lark="x" * 300_000))}, "spec.output.format.lark"),
        ({"output": pb.OutputOptions(prompt_logprobs=21)}, "spec.output.prompt_logprobs"),
        ({"sampling": pb.SamplingOptions(logit_bias={1: 200})}, "spec.sampling.logit_bias"),
        ({"sampling": pb.SamplingOptions(logit_bias={5000: 1})}, "spec.sampling.logit_bias"),
        ({"sampling": pb.SamplingOptions(allowed_token_ids=[5000])}, "spec.sampling.allowed_token_ids"),
    ],
)
async def test_what_is_out_of_range_is_refused_by_name(
    shared_world: World, shared_tenant: Tenant, spec: dict, field: str
) -> None:
    refusal = await refused(shared_tenant.generate(**spec))
    assert refusal.fields == [field]
    assert not shared_world.engine.calls


async def test_what_the_engine_refuses_has_its_public_name(shared_world: World, shared_tenant: Tenant) -> None:
    async def script(call: FakeCall) -> None:
        await call.refuse_field("sampling.grammar.regex", "cannot be held to: unbalanced")

    shared_world.engine.script = script
    refusal = await refused(shared_tenant.generate(output=pb.OutputOptions(format=pb.OutputFormat(regex="("))))
    assert (refusal.info.reason, refusal.fields) == ("INVALID_FIELD", ["spec.output.format.regex"])
    assert refusal.bad_request.field_violations[0].description == "cannot be held to: unbalanced"


async def test_an_engine_with_too_many_grammars_is_busy_for_these_only(
    shared_world: World, shared_tenant: Tenant
) -> None:
    async def script(call: FakeCall) -> None:
        await call.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "GRAMMARS_BUSY")

    shared_world.engine.script = script
    refusal = await refused(shared_tenant.generate(output=pb.OutputOptions(format=pb.OutputFormat(regex="a"))))
    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE")
    assert refusal.retry is not None
    shared_world.engine.script = hello
    assert (await shared_tenant.generate()).outputs[0].text == "hello"
