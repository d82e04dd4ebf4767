"""Samples of one prompt share its blocks and copy the last: each says, to the last bit, what it says alone."""

import random
from dataclasses import replace

import pytest
import torch

from engine.core.config import SchedulerConfig
from engine.core.costs import Prices
from engine.core.types import PathNode, Request, SamplingParams
from engine.model.loader import load_model
from engine.runner.kv_cache import KvCache
from engine.runner.proposers import NgramDrafts
from tests.model import tiny_llama
from tests.runner.test_scheduled_swap import BLOCK_SIZE, MODES, Served

ALONE = 1000
ROOM = {"num_device_blocks": 100, "max_num_batched_tokens": 64}
MODELS = {"float32": ("float32", None), "bfloat16": ("bfloat16", None), "int8": ("float32", "int8")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_llama.write_folder(tmp_path_factory.mktemp("tiny") / "m", tiny_llama.make_model())


@pytest.fixture(scope="module", params=MODELS.values(), ids=MODELS.keys())
def model(request, folder):
    dtype, quantization = request.param
    return load_model(folder, dtype=dtype, device="cpu", quantization=quantization)


def prompt_of(seed: int, num_tokens: int) -> tuple[int, ...]:
    source = random.Random(seed)
    return tuple(source.randrange(2, tiny_llama.VOCABULARY_SIZE) for _ in range(num_tokens))


def samples(
    num: int, prompt: tuple[int, ...], name: str = "s", tenant: str = "t", num_output: int = 8
) -> list[Request]:
    """Requests of one prompt; the first one takes the likeliest tokens, the others draw."""
    return [
        Request(
            generation_id=f"{name}{number}",
            path=(PathNode(tenant, 1.0),),
            prompt_token_ids=prompt,
            max_output_tokens=num_output,
            arrived_at=0,
            sampling=SamplingParams(temperature=1.2 if number else 0.0, seed=number, num_logprobs=2),
        )
        for number in range(num)
    ]


def alone(model, requests: list[Request], **fields):
    """Outputs and log-probabilities of each request with an engine of its own, which shares nothing."""
    outputs, logprobs = {}, {}
    for request in requests:
        served = Served(model, ALONE, **(ROOM | fields))
        served.add(request)
        outputs |= served.run()
        logprobs |= served.logprobs
    return outputs, logprobs


@pytest.mark.parametrize("num_prompt_tokens", [3, 24, 39])
def test_they_have_the_bits_that_they_have_alone(model, num_prompt_tokens):
    requests = samples(4, prompt_of(1, num_prompt_tokens))
    served = Served(model, ALONE, enable_prefix_caching=True, batch_invariant=True, **ROOM)
    served.scheduler.calibrate(Prices(), 0)  # one step more is sooner than any token
    for request in requests:
        served.add(request)
    outputs = served.run()

    assert (outputs, served.logprobs) == alone(model, requests, batch_invariant=True)
    totals = served.stats.totals
    assert totals.num_found_tokens == 3 * (num_prompt_tokens - 1)
    assert totals.num_prefill_tokens == num_prompt_tokens + 3


def test_prompts_that_part_within_a_block_have_them_too(model):
    beginning = prompt_of(2, 30)
    requests = [
        replace(samples(1, (*beginning[: 30 - number], *prompt_of(number, 5)))[0], generation_id=f"r{number}")
        for number in range(5)
    ]
    served = Served(model, ALONE, enable_prefix_caching=True, batch_invariant=True, **ROOM)
    for request in requests:
        served.add(request)
        served.step()

    assert (served.run(), served.logprobs) == alone(model, requests, batch_invariant=True)
    assert served.stats.totals.num_found_tokens == sum(30 - number for number in range(1, 5))


DISTURBED = [
    (mode, num_drafts, chunk, num)
    for mode in ("recompute", "swap", "partial swap", "cheaper")
    for num_drafts in (0, 3)
    for chunk in (7, 40)
    for num in (2, 4)
]


def check_disturbed(model, seed: int, mode: str, num_drafts: int, chunk: int, num: int) -> Served:
    """Samples of three prompts that begin alike take turns, with and without the cache."""
    beginning = prompt_of(seed, 21)
    requests = []
    for group in range(3):
        prompt = (*beginning[: 21 - 5 * group], *prompt_of(group, group * 3))
        requests += samples(num, prompt, f"{group}.", tenant=f"tenant{group}", num_output=6)
    requests = [replace(request, cache_salt=b"one") for request in requests]
    limits = {"max_num_batched_tokens": 6 + chunk, "num_draft_tokens": num_drafts, "min_draft_acceptance": 0.0}
    drafts = NgramDrafts(1) if num_drafts else None
    served = Served(model, 2, drafts=drafts, batch_invariant=True, enable_prefix_caching=True, **(MODES[mode] | limits))
    for request in requests:
        served.add(request)

    assert (served.run(), served.logprobs) == alone(model, requests, batch_invariant=True)
    assert served.stats.totals.num_found_tokens > 0
    return served


@pytest.mark.parametrize("model", [MODELS["float32"]], indirect=True, ids=["float32"])
@pytest.mark.parametrize(("mode", "num_drafts", "chunk", "num"), random.Random(4).sample(DISTURBED, 4))
def test_with_all_else_between_them_they_have_them_too(model, mode, num_drafts, chunk, num):
    check_disturbed(model, 3, mode, num_drafts, chunk, num)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "num_drafts", "chunk", "num"), DISTURBED)
def test_with_all_else_between_them_they_have_them_in_every_setting(model, mode, num_drafts, chunk, num):
    for seed in (5, 6):
        check_disturbed(model, seed, mode, num_drafts, chunk, num)


class TestBlockCopies:
    @pytest.fixture
    def cache(self, model) -> KvCache:
        config = SchedulerConfig(
            max_num_seqs=1, max_num_batched_tokens=8, block_size=BLOCK_SIZE, num_device_blocks=12, max_model_len=32
        )
        cache = KvCache(model, config)
        cache.blocks[:12] = torch.arange(12).view(12, 1, 1, 1, 1, 1)
        return cache

    @pytest.mark.parametrize(
        "pairs", [[(0, 1)], [(0, 1), (1, 2)], [(0, 1), (2, 0)], [(3, 4), (4, 3)], [(5, 5)], [(0, 1), (2, 1), (1, 0)]]
    )
    def test_are_done_one_after_the_other(self, cache, pairs):
        self.check(cache, pairs)

    def test_are_done_one_after_the_other_however_they_overlap(self, cache):
        source = random.Random(1)
        self.check(cache, [(source.randrange(12), source.randrange(12)) for _ in range(40)])

    def check(self, cache: KvCache, pairs: list[tuple[int, int]]) -> None:
        expected = list(range(12))
        for source, target in pairs:
            expected[target] = expected[source]

        cache.copy_blocks(pairs)

        assert torch.equal(
            cache.blocks[:12], cache.blocks.new_tensor(expected).view(12, 1, 1, 1, 1, 1).expand_as(cache.blocks[:12])
        )
        assert not cache.blocks[12].any()


@pytest.mark.parametrize("num_tokens", [17, 24, 32, 39])
def test_a_copied_sequence_goes_on_as_the_other_one_did(model, make_driver, num_tokens):
    driver = make_driver(model, block_size=16, batch_invariant=True)
    first = driver.add(0, list(prompt_of(7, 40)))
    driver.prefill([0], chunk_size=40)
    expected = driver.logits
    first.token_ids = first.token_ids[:40]
    copied = driver.copy(0, 1, num_tokens)
    driver.step({1: 40 - num_tokens})

    assert torch.equal(driver.logits, expected)
    blocks = driver.runner.kv_cache.blocks[torch.tensor(copied.block_ids)]
    assert blocks[:-1].isfinite().all()
    assert blocks[-1, :, : 40 % 16].isfinite().all()


def test_what_is_not_finite_behind_the_copied_tokens_is_not_read(model, make_driver):
    driver = make_driver(model, block_size=16)
    first = driver.add(0, list(prompt_of(7, 40)))
    driver.prefill([0], chunk_size=40)
    first.token_ids = first.token_ids[:40]
    driver.runner.kv_cache.blocks[first.block_ids[2], :, 4:] = torch.nan
    driver.copy(0, 1, 36)

    assert not driver.step({1: 4}).errors
    assert driver.runner.kv_cache.blocks[driver.rows[1].block_ids[2]].isfinite().all()
