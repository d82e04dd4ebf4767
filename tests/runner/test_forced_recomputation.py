"""Whoever runs loses all that was computed of it, after every single step: the same is said as if nobody had."""

from dataclasses import replace

import pytest

from engine.core import invariants
from engine.core.types import PauseReason, SamplingParams
from engine.model.loader import load_model
from engine.runner.proposers import ModelDrafts, NgramDrafts
from tests.model import tiny_llama
from tests.runner.test_scheduled_swap import Served, make_request

UNDISTURBED = 1000  # steps of a turn
NUM_REQUESTS = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tiny_llama.write_folder(tmp_path_factory.mktemp("tiny") / "m", tiny_llama.make_model())
    return load_model(folder, dtype="float32", device="cpu")


def greedy_request(index: int):
    return replace(make_request(index), sampling=SamplingParams(temperature=0.0), max_output_tokens=12 + index)


@pytest.fixture(scope="module")
def expected(model):
    """What each request says with the engine to itself."""
    outputs = {}
    for index in range(NUM_REQUESTS):
        alone = Served(model, UNDISTURBED)
        alone.add(greedy_request(index))
        outputs |= alone.run()
    return outputs


class Robbed(Served):
    """After each step that gave some sequence a token, or after every one, those that run have no blocks."""

    def __init__(self, model, *, always: bool, **fields) -> None:
        super().__init__(model, UNDISTURBED, num_device_blocks=300, **fields)
        self._always = always
        self.num_robbed = 0

    def step(self) -> None:
        before = sum(map(len, self.outputs.values()))
        super().step()
        if self._always or sum(map(len, self.outputs.values())) > before:
            for seq in tuple(self.scheduler.lifecycle.running):
                self.scheduler.planner.preemptions.recompute(seq, PauseReason.KV_PRESSURE, self.now)
                self.num_robbed += 1
            self._take(self.scheduler.lifecycle.take_events())
            invariants.check(self.scheduler)


VARIANTS = {
    "plain": {},
    "batch invariant": {"batch_invariant": True},
    "prefix cache": {"enable_prefix_caching": True},
    "lookup": {"drafts": NgramDrafts(1), "num_draft_tokens": 4, "min_draft_acceptance": 0.0},
}


@pytest.mark.parametrize("fields", VARIANTS.values(), ids=VARIANTS.keys())
def test_greedy_text_is_the_same_if_all_is_computed_again_for_every_token(model, expected, fields):
    served = Robbed(model, always=True, max_num_batched_tokens=800, **fields)
    for index in range(NUM_REQUESTS):
        served.add(greedy_request(index))
    assert served.run() == expected
    assert served.num_robbed >= sum(map(len, expected.values())) - 6 * NUM_REQUESTS
    assert served.stats.num_preemptions == served.num_robbed


def test_greedy_text_is_the_same_if_what_is_computed_again_takes_many_chunks(model, expected):
    served = Robbed(model, always=False, max_num_batched_tokens=7)
    for index in range(NUM_REQUESTS):
        served.add(greedy_request(index))
    assert served.run() == expected
    assert served.num_robbed > 50


def test_greedy_text_is_the_same_with_a_draft_model_that_never_keeps_anything(model, expected):
    num_drafts = 4
    fields = {"drafts": ModelDrafts(model), "num_draft_tokens": num_drafts, "min_draft_acceptance": 0.0}
    served = Robbed(model, always=True, max_num_batched_tokens=800, **fields)
    for index in range(NUM_REQUESTS):
        served.add(greedy_request(index))
    assert served.run() == expected
    assert served.num_robbed >= sum(map(len, expected.values())) // (num_drafts + 1)  # whatever was accepted
    assert served.stats.num_preemptions == served.num_robbed
