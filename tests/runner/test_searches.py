"""Searches over real models: what `transformers` finds with the same weights, whatever happens to the beams."""

import random
from dataclasses import replace
from itertools import product

import pytest
import torch

from engine.core.config import PreemptionChoice
from engine.core.events import BeamFound, Finished
from engine.core.types import BeamSearchParams, FinishReason, PathNode, Request, SamplingParams
from engine.model.loader import load_model
from tests.model import tiny_llama
from tests.runner.test_scheduled_swap import Served

TOLERANCE = 2e-4
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def reference():
    return tiny_llama.make_model().eval()


@pytest.fixture(scope="module")
def model(tmp_path_factory, reference):
    return load_model(
        tiny_llama.write_folder(tmp_path_factory.mktemp("tiny") / "m", reference), dtype="float32", device="cpu"
    )


def make_request(number, prompt, max_output_tokens, stop_token_ids=(), sampling=GREEDY, **search) -> Request:
    return Request(
        generation_id=f"g{number}",
        path=(PathNode("acme", 1.0), PathNode("ab"[number % 2], 1.0)),
        prompt_token_ids=tuple(prompt),
        max_output_tokens=max_output_tokens,
        arrived_at=0,
        sampling=sampling,
        stop_token_ids=frozenset(stop_token_ids),
        beam_search=BeamSearchParams(**search),
    )


def make_prompt(seed, length):
    rng = random.Random(seed)
    return [rng.randrange(2, tiny_llama.VOCABULARY_SIZE) for _ in range(length)]


class Searched(Served):
    """Keeps what was found."""

    def __init__(self, *args, **fields) -> None:
        self.found, self.ends = {}, {}
        super().__init__(*args, **fields)

    def _take(self, events) -> None:
        for event in events:
            if isinstance(event, BeamFound):
                self.found.setdefault(event.key.generation_id, []).append(event.hypothesis)
            elif isinstance(event, Finished):
                self.ends[event.key.generation_id] = event
        self._poison()


def search(model, *requests, slice_steps=1_000, **fields) -> dict[str, list]:
    served = Searched(model, slice_steps, **({"num_device_blocks": 200, "max_num_seqs": 20} | fields))
    for request in requests:
        served.add(request)
    served.run()
    return served.found


def assert_same(hypotheses, expected) -> None:
    """Tokens and scores of `expected`, which is what `transformers` returned."""
    sequences, scores = expected
    assert [list(each.token_ids) for each in hypotheses] == sequences
    assert [each.score for each in hypotheses] == pytest.approx(scores, abs=TOLERANCE, rel=TOLERANCE)


def reference_search(reference, request: Request):
    """(tokens, scores) of the returned sequences."""
    params, prompt, stops = request.beam_search, list(request.prompt_token_ids), sorted(request.stop_token_ids)
    with torch.inference_mode():
        found = reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            num_beams=params.width,
            num_return_sequences=params.num_returned,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
            do_sample=False,
            max_new_tokens=request.max_output_tokens,
            eos_token_id=stops or None,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
        )
    outputs = [sequence[len(prompt) :].tolist() for sequence in found.sequences]
    return [_without_padding(output, stops) for output in outputs], found.sequences_scores.tolist()


def _without_padding(output, stops):
    ends = [index for index, token_id in enumerate(output) if token_id in stops]
    return output[: ends[0] + 1] if ends else output


FEW = [(2, -0.5, False), (4, 1.0, False), (4, 1.0, True), (7, 2.0, False)]
MANY = [one for one in product([2, 3, 4, 7, 16], [-0.5, 0.0, 1.0, 2.0], [False, True]) if one not in FEW]


@pytest.mark.parametrize(
    ("width", "length_penalty", "early_stopping"), [*FEW, *[pytest.param(*one, marks=pytest.mark.slow) for one in MANY]]
)
def test_search_finds_what_the_reference_finds(model, reference, width, length_penalty, early_stopping):
    kinds = [(30, ()), (25, (3, 17)), (12, range(40, 120))]
    requests = [
        make_request(
            number,
            make_prompt(width * 10 + number, 5 + 6 * number),
            num_tokens,
            stops,
            width=width,
            num_returned=width,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
        )
        for number, (num_tokens, stops) in enumerate(kinds)
    ]
    found = search(model, *requests)
    for request in requests:
        assert_same(found[request.generation_id], reference_search(reference, request))


@pytest.mark.parametrize("mode", [PreemptionChoice.SWAP, PreemptionChoice.RECOMPUTE])
@pytest.mark.parametrize("prefix_caching", [False, True])
def test_beams_that_lose_their_blocks_again_and_again_find_the_same(model, reference, mode, prefix_caching):
    requests = [
        make_request(number, make_prompt(number, 9 + 4 * number), 14, (5, 6), width=3, num_returned=3)
        for number in range(4)
    ]
    found = search(
        model,
        *requests,
        slice_steps=2,
        num_device_blocks=26,
        max_num_seqs=6,
        num_host_blocks=100 if mode is PreemptionChoice.SWAP else 0,
        preemption_mode=mode,
        enable_prefix_caching=prefix_caching,
    )
    for request in requests:
        assert_same(found[request.generation_id], reference_search(reference, request))


def test_allowed_tokens_biases_and_penalties_hold_for_every_beam(model):
    allowed = tuple(range(50, 70))
    sampling = replace(GREEDY, allowed_token_ids=allowed, repetition_penalty=1.3, logit_biases=((55, 5.0),))
    request = make_request(0, make_prompt(1, 8), 10, width=4, num_returned=4, sampling=sampling)
    (found,) = search(model, request).values()
    assert len(found) == 4
    for hypothesis in found:
        assert set(hypothesis.token_ids) <= set(allowed)
        assert hypothesis.cumulative_logprob < 0
    again = search(model, request, slice_steps=1, num_device_blocks=30, max_num_seqs=3)["g0"]
    assert [each.token_ids for each in again] == [each.token_ids for each in found]


def test_fewer_allowed_tokens_than_beams_are_enough(model):
    sampling = replace(GREEDY, allowed_token_ids=(50, 51))
    request = make_request(0, make_prompt(1, 8), 3, width=5, num_returned=5, sampling=sampling)
    (found,) = search(model, request).values()
    assert len({each.token_ids for each in found}) == len(found) == 5
    assert [each.score for each in found] == sorted([each.score for each in found], reverse=True)


def test_log_probabilities_are_the_models_own(model, reference):
    sampling = replace(GREEDY, num_logprobs=3)
    prompt = make_prompt(2, 11)
    (found,) = search(model, make_request(0, prompt, 6, width=3, num_returned=3, sampling=sampling)).values()
    for hypothesis in found:
        token_ids = [*prompt, *hypothesis.token_ids]
        with torch.inference_mode():
            logprobs = reference(torch.tensor([token_ids])).logits[0].log_softmax(-1)[len(prompt) - 1 :]
        for entry, row, token_id in zip(hypothesis.logprobs, logprobs, hypothesis.token_ids, strict=False):
            assert entry.logprob == pytest.approx(row[token_id].item(), abs=TOLERANCE)
            assert [token for token, _ in entry.top] == row.topk(3).indices.tolist()
        total = sum(entry.logprob for entry in hypothesis.logprobs)
        assert total == pytest.approx(hypothesis.cumulative_logprob, abs=1e-3)


def test_values_that_are_not_finite_end_the_search_and_no_other_request(model):
    served = Searched(model, 1_000, num_device_blocks=200, max_num_seqs=20)
    served.add(make_request(0, make_prompt(3, 9), 20, width=4))
    served.add(make_request(1, make_prompt(4, 9), 20, width=4))
    for _ in range(3):
        served.step()
    beams = served.scheduler.lifecycle.by_generation["g0"].of_request
    computed = next(seq for seq in beams if seq.row is not None)  # the others' last blocks are still to be copied
    served.runner.kv_cache.blocks[computed.block_table.device[-1]].fill_(float("nan"))
    served.run()
    assert served.ends["g0"].reason is FinishReason.ERROR
    assert served.ends["g1"].reason is FinishReason.LENGTH
    assert list(served.found) == ["g1"]
