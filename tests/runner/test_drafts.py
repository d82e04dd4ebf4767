"""Drafts change nothing but the pace: what is said with them is what is said without, however they come about."""

import random
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from engine.core.config import SchedulerConfig
from engine.core.events import Finished, TokensEmitted
from engine.core.plan import RowStart, StepPlan
from engine.core.scheduler import Scheduler
from engine.core.stats import Totals
from engine.core.types import SamplingParams, SequenceKey
from engine.kernels.ops import judge
from engine.model.loader import load_model
from engine.runner.model_runner import NON_FINITE_ERROR, ModelRunner
from engine.runner.proposers import ModelDrafts, NgramDrafts
from policies.fcfs import Fcfs
from policies.latest_arrival import LatestArrival
from tests.model import tiny_llama
from tests.runner.test_scheduled_swap import MODES, Served, make_request

NUM_REQUESTS, ALONE = 12, 1000  # steps of a turn that nobody cuts short


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tiny_llama.write_folder(tmp_path_factory.mktemp("tiny") / "m", tiny_llama.make_model())
    return load_model(folder, dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def smaller_model(tmp_path_factory):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    folder = tmp_path_factory.mktemp("smaller") / "m"
    tiny_llama.write_folder(folder, tiny_llama.make_model(**sizes, num_key_value_heads=1))
    return load_model(folder, dtype="float32", device="cpu")


def drafted_request(index: int):
    """Greedy, sampled with filters, with every penalty, with logprobs: in turn."""
    sampling = (
        SamplingParams(temperature=0.0),
        SamplingParams(seed=index, top_p=0.9, top_k=40),
        SamplingParams(seed=index, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3),
        SamplingParams(temperature=0.0, frequency_penalty=1.5, num_logprobs=3),
        SamplingParams(seed=index, temperature=0.4, num_logprobs=2),
    )[index % 5]
    return replace(make_request(index), sampling=sampling, max_output_tokens=10 + index)


@pytest.fixture(scope="module")
def alone(model):
    """What each request says with the engine to itself and without drafts, and its logprobs."""
    outputs, logprobs = {}, {}
    for index in range(NUM_REQUESTS):
        served = Served(model, ALONE)
        served.add(drafted_request(index))
        outputs |= served.run()
        logprobs |= served.logprobs
    return SimpleNamespace(outputs=outputs, logprobs=logprobs)


class Oracle:
    """Knows what will be said, and errs in one of four tokens."""

    def __init__(self, rows, texts: dict[str, list[int]]) -> None:
        self._rows = rows
        self._texts = texts
        self._of_row: dict[int, list[int]] = {}
        self._random = random.Random(3)
        self.num_proposed = 0

    def start(self, started) -> None:
        for start in started:
            prompt = list(start.token_ids[: start.num_prompt_tokens])
            self._of_row[start.row] = prompt + self._texts[start.key.generation_id]

    def propose(self, rows, ends, limits, num_known):
        for row, end, limit in zip(rows, ends, limits, strict=True):
            for place in range(end, end + limit):
                text = self._of_row[int(row)]
                token_id = text[place] if place < len(text) else 0
                wrong = (token_id + 1) % tiny_llama.VOCABULARY_SIZE
                self._rows.token_ids[row, place] = wrong if self._random.random() < 0.25 else token_id
        self.num_proposed += int(limits.sum())
        return limits


def serve_all(model, slice_steps, *, drafts=None, texts=None, **fields) -> Served:
    served = Served(
        model, slice_steps, drafts=drafts, **({"num_draft_tokens": 5, "max_num_batched_tokens": 40} | fields)
    )
    if texts is not None:
        served.runner._proposer = Oracle(served.runner._rows, texts)
    for index in range(NUM_REQUESTS):
        served.add(drafted_request(index))
    served.run()
    return served


@pytest.mark.parametrize("slice_steps", [1, 4, pytest.param(ALONE, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())
def test_output_is_the_same_with_drafts_whatever_preempts_them(model, alone, mode, slice_steps):
    served = serve_all(model, slice_steps, texts=alone.outputs, **mode)
    assert served.outputs == alone.outputs
    if mode is MODES["recompute"]:  # how many drafts there are beside copies is a matter of their time
        totals = served.stats.totals
        assert 0 < totals.num_accepted_tokens < totals.num_drafted_tokens


@pytest.mark.parametrize("max_num_batched_tokens", [7, 16, 64])
def test_output_is_the_same_with_drafts_whatever_the_chunks(model, alone, max_num_batched_tokens):
    served = serve_all(
        model, ALONE, texts=alone.outputs, num_device_blocks=400, max_num_batched_tokens=max_num_batched_tokens
    )
    assert served.outputs == alone.outputs
    totals = served.stats.totals
    assert 0 < totals.num_accepted_tokens < totals.num_drafted_tokens


def test_logprobs_are_those_of_tokens_that_came_one_by_one(model, alone):
    served = serve_all(model, ALONE, texts=alone.outputs, num_device_blocks=400)
    for generation_id, expected in alone.logprobs.items():
        got = served.logprobs[generation_id]
        assert len(got) == len(expected)
        for ours, theirs in zip(got, expected, strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert [token_id for token_id, _ in ours.top] == [token_id for token_id, _ in theirs.top]


@pytest.mark.parametrize("slice_steps", [2, ALONE])
@pytest.mark.parametrize("mode", [MODES["recompute"], MODES["partial swap"]], ids=["recompute", "partial swap"])
def test_output_is_the_same_with_a_draft_model(model, smaller_model, alone, mode, slice_steps):
    served = serve_all(model, slice_steps, drafts=ModelDrafts(smaller_model), min_draft_acceptance=0.0, **mode)
    assert served.outputs == alone.outputs
    if mode is MODES["recompute"]:
        assert served.stats.totals.num_drafted_tokens > 0


def test_output_is_the_same_with_prompt_lookup(model, alone):
    served = serve_all(model, 5, drafts=NgramDrafts(1), min_draft_acceptance=0.0)
    assert served.outputs == alone.outputs
    assert served.stats.totals.num_drafted_tokens > 0


def test_model_that_drafts_for_itself_is_always_right(model):
    """Greedy or sampled: both draw by the same number."""
    request = replace(make_request(4), max_output_tokens=30)
    for sampling in (SamplingParams(temperature=0.0), SamplingParams(seed=11), SamplingParams(seed=3, top_p=0.8)):
        served = Served(model, ALONE, drafts=ModelDrafts(model), num_draft_tokens=4, num_device_blocks=100)
        served.add(replace(request, sampling=sampling))
        served.run()
        totals = served.stats.totals
        assert totals.num_accepted_tokens == totals.num_drafted_tokens
        assert served.num_steps <= 3 + 30 / 4  # the prompt, and turns that end with the output


def test_draft_model_catches_up_with_a_long_prompt_in_several_steps(model, smaller_model):
    prompt = tuple(np.random.default_rng(1).integers(2, 290, 60).tolist())
    request = replace(make_request(1), prompt_token_ids=prompt, max_output_tokens=24, sampling=SamplingParams(seed=2))
    outputs = []
    for drafts in (None, ModelDrafts(smaller_model)):
        fields = {"num_draft_tokens": 3, "min_draft_acceptance": 0.0} if drafts else {}
        served = Served(model, ALONE, drafts=drafts, num_device_blocks=100, max_num_batched_tokens=8, **fields)
        served.add(request)
        outputs.append(served.run())
    assert outputs[0] == outputs[1]
    assert served.stats.totals.num_drafted_tokens > 0


def test_copied_text_of_the_default_model_takes_half_as_many_steps(default_model):
    line = tuple(range(300, 325))
    outputs, steps = [], []
    for drafts in (None, NgramDrafts(3)):
        served = Served(
            default_model,
            ALONE,
            drafts=drafts,
            num_device_blocks=100,
            max_model_len=400,
            max_num_batched_tokens=256,
            num_draft_tokens=8 if drafts else 0,
        )
        sampling = SamplingParams(temperature=0.0)
        served.add(replace(make_request(1), prompt_token_ids=line * 4, max_output_tokens=18, sampling=sampling))
        outputs.append(served.run())
        steps.append(served.num_steps)
    assert outputs[0] == outputs[1]
    assert steps[1] <= steps[0] / 2


NUM_STATES = 12


class Chain(torch.nn.Module):
    """A model whose next token depends on the last one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = torch.randn((NUM_STATES, NUM_STATES), generator=torch.Generator().manual_seed(4)) * 1.5

    def forward(self, batch, kv_caches):
        return self.logits[batch.token_ids[batch.sampled_index]]


@dataclass
class Said:
    """What a model without attention said to 64 requests, how each ended, and how many drafts were verified."""

    outputs: list[list[int]]
    errors: list[str | None]
    totals: Totals


NUM_ROWS = 64


def serve_chain(model, module, *, num_tokens, drafts=None) -> Said:
    config = SchedulerConfig(
        max_num_seqs=NUM_ROWS,
        max_drafting_seqs=NUM_ROWS,
        max_num_batched_tokens=8 * NUM_ROWS,
        block_size=16,
        num_device_blocks=NUM_ROWS * (num_tokens // 16 + 2),
        max_model_len=num_tokens + 10,
        num_draft_tokens=0 if drafts is None else 4,
        min_draft_acceptance=0.0,
    )
    runner = ModelRunner(
        replace(model, config=replace(model.config, vocabulary_size=NUM_STATES), module=module), config, drafts
    )
    scheduler = Scheduler(config, Fcfs(), LatestArrival())
    for index in range(NUM_ROWS):
        request = replace(make_request(index), prompt_token_ids=(0, 1, 2), max_output_tokens=num_tokens)
        scheduler.add(replace(request, sampling=SamplingParams(seed=1000 + index)), 0)
    outputs, errors = [[] for _ in range(NUM_ROWS)], [None] * NUM_ROWS
    while (plan := scheduler.plan(0)) is not None:
        for event in scheduler.commit(runner.execute(plan), 0):
            index = int(event.key.generation_id[1:])
            if isinstance(event, TokensEmitted):
                outputs[index] += event.token_ids
            elif isinstance(event, Finished):
                errors[index] = event.error
    return Said(outputs, errors, scheduler.stats().totals)


def test_tokens_are_drawn_with_their_probabilities_behind_drafts(model):
    chain = Chain()
    served = serve_chain(model, chain, num_tokens=400, drafts=NgramDrafts(1))
    totals = served.totals
    assert totals.num_drafted_tokens > 20_000, "few tokens were drawn behind drafts"
    assert 2_000 < totals.num_accepted_tokens < totals.num_drafted_tokens
    counts = np.zeros((NUM_STATES, NUM_STATES))
    for output in served.outputs:
        np.add.at(counts, (output[:-1], output[1:]), 1)
    assert counts.sum() > 20_000
    expected = chain.logits.double().softmax(-1).numpy() * counts.sum(1, keepdims=True)
    likely = expected >= 5
    num_free = likely.sum() - NUM_STATES
    assert ((counts - expected)[likely] ** 2 / expected[likely]).sum() < num_free + 5 * np.sqrt(2 * num_free)
    assert serve_chain(model, chain, num_tokens=400).outputs == served.outputs


class Broken(Chain):
    """Behind one state there are no numbers."""

    def __init__(self, state: int) -> None:
        super().__init__()
        self.logits[state] = torch.nan


def test_request_ends_where_the_numbers_do_and_not_for_a_wrong_draft(model):
    plain, served = (serve_chain(model, Broken(5), num_tokens=30, drafts=drafts) for drafts in (None, NgramDrafts(1)))
    assert served.errors == plain.errors
    assert served.outputs == plain.outputs
    assert set(plain.errors) == {None, NON_FINITE_ERROR}
    assert served.totals.num_accepted_tokens > 0


class Counting(torch.nn.Module):
    """A model that counts up."""

    def forward(self, batch, kv_caches):
        return torch.nn.functional.one_hot(batch.token_ids[batch.sampled_index] + 1, NUM_STATES).float()

    def likeliest(self, batch, kv_caches):
        return judge(self(batch, kv_caches))


@pytest.mark.parametrize(("stops", "num_proposed"), [(frozenset(), 5), (frozenset({5}), 2), (frozenset({9}), 5)])
def test_nothing_is_proposed_behind_a_stop_token(model, stops, num_proposed):
    config = Served(model, ALONE, num_draft_tokens=5).scheduler.config
    counting = replace(model, config=replace(model.config, vocabulary_size=NUM_STATES), module=Counting())
    runner = ModelRunner(counting, config, NgramDrafts(2))
    prompt = (1, 2, 3, 4, 5, 6, 1, 2)
    sampling = SamplingParams(temperature=0.0)
    start = RowStart(0, SequenceKey("g", 0), prompt, len(prompt), tuple(range(4)), sampling, stops)
    output = runner.execute(StepPlan(0, (), (start,), (), (0,), (0,), (8,), (True,), draft_limits=(5,)))
    assert output.accepted == {0: (3,)}
    assert output.proposed == {0: num_proposed}
