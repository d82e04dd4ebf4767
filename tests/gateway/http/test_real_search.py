"""Beam searches with a real model: a gateway over an engine, at both doors, within a quota, and cancelled."""

import openai
import pytest

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.store.enums import Dimension
from gateway.store.records import QuotaLimit
from tests.gateway.calls import rest_of
from tests.gateway.http.test_real_engine import model_sdk as model_sdk  # a fixture
from tests.gateway.searches import outputs_of
from tests.gateway.world import Tenant, World

HOUR_MS = 3_600_000
PROMPT = "The capital of France is"
NUM_TOKENS, WIDTH = 6, 4
BURST = 20_000
OUTPUT = QuotaLimit(Dimension.OUTPUT_TOKENS, 1, HOUR_MS, BURST)


async def remaining(tenant: Tenant) -> int:
    return (await tenant.quota_status()).limits[0].remaining


def searched(num_tokens: int, width: int = WIDTH, **spec) -> dict:
    return {
        "text": PROMPT,
        "beam_search": pb.BeamSearchOptions(width=width, num_returned=3),
        "stopping": {"max_output_tokens": num_tokens, "ignore_eos": True},
        **spec,
    }


async def check_choices(sdk: openai.AsyncOpenAI, model: str) -> None:
    """Scores are of the log-probabilities that are told, and a stream says the same."""
    options = {"beam_width": WIDTH, "length_penalty": 0.5, "ignore_eos": True}
    asked = {"model": model, "prompt": PROMPT, "max_tokens": NUM_TOKENS, "n": 3, "extra_body": options}

    whole = await sdk.completions.create(**asked, logprobs=0)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    scores = [choice.score for choice in whole.choices]
    assert scores == sorted(scores, reverse=True)
    for choice in whole.choices:
        assert choice.finish_reason == "length"
        assert len(choice.logprobs.token_logprobs) == NUM_TOKENS
        assert sum(choice.logprobs.token_logprobs) / NUM_TOKENS**0.5 == pytest.approx(choice.score, abs=1e-3)
    assert len({choice.text for choice in whole.choices}) == 3
    assert 3 * NUM_TOKENS <= whole.usage.completion_tokens <= WIDTH * NUM_TOKENS

    texts: dict[int, str] = {}
    async for chunk in await sdk.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert texts == {choice.index: choice.text for choice in whole.choices}


async def check_quota(world: World) -> None:
    """What was computed stays charged, of a search that is cancelled, too."""
    tenant = await world.tenant("globex", limits=(OUTPUT,))
    told = [message async for message in tenant.stream(timeout=120, **searched(NUM_TOKENS))]
    used = told[-1].finish.usage.output_tokens
    await world.settled()
    assert len(outputs_of(told)) == 3
    assert await remaining(tenant) == BURST - used

    stream = tenant.stream(timeout=120, **searched(500, width=8))
    admission = (await stream.read()).admission
    await tenant.cancel(admission.generation_id)
    last = (await rest_of(stream))[-1]
    await world.settled()
    assert last.finish.finish_reason == pb.FINISH_REASON_CANCELLED
    assert await remaining(tenant) == BURST - used - last.finish.usage.output_tokens


@pytest.mark.timeout(300)
async def test_a_real_model_is_searched(model_sdk: tuple[openai.AsyncOpenAI, str], closed_world: World) -> None:
    await check_choices(*model_sdk)
    await check_quota(closed_world)
