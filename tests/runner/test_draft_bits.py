"""A token has the same bits whether it came alone or was one of many drafts, up to the most that a step may verify."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from engine.core.config import MAX_DRAFT_TOKENS
from engine.core.types import SamplingParams
from engine.model.loader import load_model
from engine.runner.proposers import ModelDrafts
from tests.model import tiny_llama
from tests.runner.test_drafts import ALONE, Oracle
from tests.runner.test_scheduled_swap import Served, make_request

NUM_REQUESTS = 6
# No prompt is cut and nothing is preempted: where a prompt is cut, its tokens get other bits.
ROOM = {"num_device_blocks": 400, "max_num_batched_tokens": 1000, "min_draft_acceptance": 0.0}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    path = tmp_path_factory.mktemp("models")
    return SimpleNamespace(
        target=tiny_llama.write_folder(path / "target", tiny_llama.make_model()),
        drafts=tiny_llama.write_folder(path / "drafts", tiny_llama.make_model(**sizes, num_key_value_heads=1)),
    )


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def model(request, folders):
    return load_model(folders.target, dtype=request.param, device="cpu")


def serve(model, indices, *, drafts=None, texts=None, **fields):
    served = Served(model, ALONE, drafts=drafts, **ROOM, **fields)
    if texts is not None:
        served.runner._proposer = Oracle(served.runner._rows, texts)
    for index in indices:
        sampling = SamplingParams(temperature=0.8 * (index % 2), seed=index, num_logprobs=2)
        served.add(replace(make_request(index), sampling=sampling, max_output_tokens=40))
    served.run()
    return served


@pytest.fixture(scope="module")
def alone(model):
    """What each request says with the engine to itself and without drafts, and its logprobs."""
    outputs, logprobs = {}, {}
    for index in range(NUM_REQUESTS):
        served = serve(model, [index])
        outputs |= served.outputs
        logprobs |= served.logprobs
    return SimpleNamespace(outputs=outputs, logprobs=logprobs)


@pytest.mark.parametrize("num_draft_tokens", [5, 8, MAX_DRAFT_TOKENS])
def test_logprobs_behind_drafts_have_the_bits_that_they_have_alone(model, alone, num_draft_tokens):
    served = serve(model, range(NUM_REQUESTS), texts=alone.outputs, num_draft_tokens=num_draft_tokens)
    assert served.outputs == alone.outputs
    assert served.logprobs == alone.logprobs
    totals = served.stats.totals
    assert 0 < totals.num_accepted_tokens < totals.num_drafted_tokens


@pytest.mark.parametrize("num_draft_tokens", [5, 8, MAX_DRAFT_TOKENS])
def test_logprobs_behind_a_draft_model_have_the_bits_that_they_have_alone(model, folders, alone, num_draft_tokens):
    drafts = ModelDrafts(load_model(folders.drafts, dtype="bfloat16", device="cpu"))
    served = serve(model, range(NUM_REQUESTS), drafts=drafts, num_draft_tokens=num_draft_tokens)
    assert served.outputs == alone.outputs
    assert served.logprobs == alone.logprobs
    assert served.stats.totals.num_drafted_tokens > 0
