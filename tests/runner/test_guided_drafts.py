"""Drafts of outputs that are held to grammars: none that is forbidden, all that is forced, and no other output."""

import json
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from engine.core.config import SchedulerConfig
from engine.core.events import Finished
from engine.core.plan import RowStart
from engine.core.types import FinishReason, SamplingParams, SequenceKey
from engine.grammars.matcher import Constraint
from engine.grammars.source import GrammarKind
from engine.model.loader import load_model
from engine.runner.guided_drafts import GuidedDrafts
from engine.runner.proposers import ModelDrafts, NgramDrafts
from engine.runner.row_table import RowTable
from engine.runner.token_masks import TokenMasks
from tests.grammars.schemas import random_schema
from tests.model import tiny_llama
from tests.runner.test_constrained_outputs import Held, random_sampling
from tests.runner.test_drafts import Oracle
from tests.runner.test_scheduled_swap import MODES, Served, make_request

NUM_REQUESTS, ALONE = 10, 1000  # steps of a turn that nobody cuts short
REGEXES = ("[a-c]{20,40}", "(hello |world )*!", "([0-9]{3}-){1,6}end", "x{30}", "he(llo)+ world")
LARK = (
    'start: "{" pair ("," pair)* "}"\npair: KEY ":" NUM\nKEY: /[a-d]{1,3}/\nNUM: /[0-9]{1,4}/',
    'start: "<" NAME ">" start? "</end>"\nNAME: "hello" | "world" | "sun"',
)
FIELDS = {"num_draft_tokens": 5, "max_num_batched_tokens": 40, "min_draft_acceptance": 0.0}


@pytest.fixture(scope="module")
def held(tmp_path_factory) -> Held:
    folder = tiny_llama.write_folder(tmp_path_factory.mktemp("tiny") / "m", tiny_llama.make_model())
    return Held(load_model(folder, dtype="float32", device="cpu"))


@pytest.fixture(scope="module")
def smaller_model(tmp_path_factory):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    folder = tmp_path_factory.mktemp("smaller") / "m"
    tiny_llama.write_folder(folder, tiny_llama.make_model(**sizes, num_key_value_heads=1))
    return load_model(folder, dtype="float32", device="cpu")


def random_constraint(held: Held, rng: random.Random) -> Constraint:
    ends_late = rng.random() < 0.3
    kind = rng.choice(["schema", "regex", "lark"])
    if kind == "schema":
        return held.schema(random_schema(rng), ends_late=ends_late)
    source = (GrammarKind.REGEX, rng.choice(REGEXES)) if kind == "regex" else (GrammarKind.LARK, rng.choice(LARK))
    return held.constraint(*source, ends_late=ends_late)


def guided_request(held: Held, index: int):
    """Any grammar, with whatever else a request may ask for; every fifth is held to none."""
    rng = random.Random(index)
    constraint = random_constraint(held, rng)
    sampling = replace(random_sampling(rng, constraint), constraint=None if index % 5 == 4 else constraint)
    if rng.random() < 0.2:  # now and then it leaves its grammar no way on
        sampling = replace(sampling, allowed_token_ids=tuple(rng.sample(range(300), 280)))
    stops = {*held.model.info.eos_token_ids, *rng.sample(range(300), rng.choice([0, 0, 3]))}
    return replace(
        make_request(index),
        prompt_token_ids=tuple(rng.randrange(2, 290) for _ in range(rng.randint(1, 20))),
        max_output_tokens=rng.choice([7, 30, 70]),
        sampling=sampling,
        stop_token_ids=frozenset() if constraint.ends_late else frozenset(stops),
    )


class Ended(Served):
    """Remembers how each request ended."""

    def __init__(self, model, slice_steps, **fields) -> None:
        super().__init__(model, slice_steps, **fields)
        self.ends = {}

    def _take(self, events) -> None:
        others = []
        for event in events:
            if isinstance(event, Finished):
                self.ends[event.key.generation_id] = event.reason, event.error
            else:
                others.append(event)
        super()._take(others)


def serve(held: Held, requests, slice_steps=ALONE, **fields) -> Ended:
    served = Ended(held.model, slice_steps, **fields)
    for request in requests:
        served.add(request)
    served.run()
    return served


def alone(held: Held, requests) -> SimpleNamespace:
    """What each request says with the engine to itself and without drafts, and how it ends."""
    outputs, ends = {}, {}
    for request in requests:
        served = serve(held, [request])
        outputs |= served.outputs
        ends |= served.ends
    return SimpleNamespace(outputs=outputs, ends=ends)


@pytest.fixture(scope="module")
def expected(held) -> SimpleNamespace:
    requests = [guided_request(held, index) for index in range(NUM_REQUESTS)]
    found = alone(held, requests)
    reasons = {reason for reason, _ in found.ends.values()}
    assert {FinishReason.STOP, FinishReason.LENGTH} <= reasons
    return SimpleNamespace(requests=requests, outputs=found.outputs, ends=found.ends)


def with_oracle(served: Served, texts) -> Served:
    served.runner._proposer = Oracle(served.runner._rows, texts)
    return served


@pytest.mark.parametrize("slice_steps", [1, 4, pytest.param(ALONE, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", [MODES["recompute"], MODES["partial swap"]], ids=["recompute", "partial swap"])
def test_guided_outputs_are_the_same_with_drafts_whatever_preempts_them(held, expected, mode, slice_steps):
    served = with_oracle(Ended(held.model, slice_steps, **FIELDS, **mode), expected.outputs)
    for request in expected.requests:
        served.add(request)
    served.run()
    assert served.outputs == expected.outputs
    assert served.ends == expected.ends
    assert served.stats.num_preemptions > 0
    if mode is MODES["recompute"]:
        assert 0 < served.stats.totals.num_accepted_tokens < served.stats.totals.num_drafted_tokens


@pytest.mark.parametrize("max_num_batched_tokens", [7, 64])
def test_guided_outputs_are_the_same_with_prompt_lookup(held, expected, max_num_batched_tokens):
    fields = FIELDS | {"max_num_batched_tokens": max_num_batched_tokens, "num_device_blocks": 400}
    served = serve(held, expected.requests, drafts=NgramDrafts(1), **fields)
    assert served.outputs == expected.outputs
    assert served.ends == expected.ends
    assert 0 < served.stats.totals.num_accepted_tokens <= served.stats.totals.num_drafted_tokens


@pytest.mark.parametrize("slice_steps", [3, ALONE])
def test_guided_outputs_are_the_same_with_a_draft_model(held, smaller_model, expected, slice_steps):
    served = serve(
        held, expected.requests, slice_steps, drafts=ModelDrafts(smaller_model), **FIELDS, **MODES["recompute"]
    )
    assert served.outputs == expected.outputs
    assert served.ends == expected.ends
    assert served.stats.totals.num_accepted_tokens > 0


def check_sweep(held: Held, smaller_model, seed: int) -> None:
    """Requests of their own, some of them cancelled, in random settings."""
    rng = random.Random(seed)
    requests = [guided_request(held, 1000 * seed + index) for index in range(8)]
    found = alone(held, requests)
    drafts = rng.choice([NgramDrafts(1), NgramDrafts(3), ModelDrafts(smaller_model)])
    fields = FIELDS | rng.choice(list(MODES.values())) | {"num_draft_tokens": rng.choice([1, 3, 8])}
    fields["enable_prefix_caching"] = rng.random() < 0.5
    served = Ended(held.model, rng.choice([1, 3, ALONE]), drafts=drafts, **fields)
    if rng.random() < 0.5:
        with_oracle(served, found.outputs)
    for request in requests:
        served.add(request)
    victims = rng.sample([request.generation_id for request in requests], 2)
    while served.scheduler.has_unfinished:
        if victims and rng.random() < 0.1:
            served.abort(victims.pop())
        if served.scheduler.has_unfinished:
            served.step()
    outputs = served.run()
    assert {name: found.outputs[name] for name in outputs} == outputs
    assert all(served.ends[name] == found.ends[name] for name in outputs)


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(s, marks=pytest.mark.slow) for s in range(3, 30))])
def test_guided_outputs_are_the_same_in_any_company(held, smaller_model, seed):
    check_sweep(held, smaller_model, seed)


def test_what_a_grammar_forces_is_guessed_right_without_a_guesser(held):
    """Nothing stands twice in it, so that a lookup of eight tokens finds nothing."""
    names = ("alpha", "bravo", "charlie")
    schema = {
        "type": "object",
        "properties": {name: {"enum": [name[::-1], "no"]} for name in names},
        "required": list(names),
        "additionalProperties": False,
    }
    sampling = SamplingParams(seed=5, constraint=held.schema(schema))
    request = replace(make_request(1), sampling=sampling, max_output_tokens=90, prompt_token_ids=(3, 4))
    steps = []
    for drafts in (None, NgramDrafts(8)):
        served = serve(held, [request], drafts=drafts, **(FIELDS if drafts else {}))
        steps.append(served.num_steps)
        assert json.loads(held.text(served.outputs["r1"])).keys() == set(names)
    totals = served.stats.totals
    assert totals.num_accepted_tokens == totals.num_drafted_tokens > 0
    assert steps[1] < steps[0] / 2


class Writes:
    """Proposes what it is told to, and remembers what it was asked."""

    def __init__(self, rows: RowTable, token_ids) -> None:
        self._rows = rows
        self._token_ids = token_ids
        self.asked = []

    def start(self, started) -> None:
        """It remembers nothing."""

    def propose(self, rows, ends, limits, num_known):
        self.asked += zip(rows.tolist(), ends.tolist(), limits.tolist(), strict=True)
        counts = np.minimum(limits, len(self._token_ids))
        for row, end, count in zip(rows, ends, counts, strict=True):
            self._rows.token_ids[row, end : end + count] = self._token_ids[:count]
        return counts


@pytest.mark.parametrize(
    ("regex", "guess", "expected", "num_certain", "asked"),
    [
        ("[a-c]{9}", "abcab", "abcab", 0, [(0, 2, 5)]),
        ("[a-c]{9}", "abxab", "ab", 0, [(0, 2, 5)]),  # cut at the first that may not follow
        ("[a-c]{3}", "abcab", "ab", 0, [(0, 2, 5)]),  # the token that completes an output is no draft
        ("[a-c]xyz[a-c]{9}", "abcab", "axyz", 0, [(0, 2, 5)]),  # what is forced stands where the guess went wrong
        ("vwxyz[a-c]", "abcab", "vwxyz", 5, []),  # nobody is asked where all is forced
        ("vwx[a-c]{9}", "abcab", "vwxab", 3, [(0, 5, 2)]),
    ],
)
def test_drafts_are_cut_where_they_leave_the_grammar_and_filled_in_where_it_forces(
    held, regex, guess, expected, num_certain, asked
):
    config = SchedulerConfig(
        max_num_seqs=2, block_size=4, num_device_blocks=16, max_num_batched_tokens=16, max_model_len=40
    )
    rows, masks = RowTable(config), TokenMasks(2, tiny_llama.VOCABULARY_SIZE)
    sampling = SamplingParams(constraint=held.constraint(GrammarKind.REGEX, regex))
    masks.start([RowStart(0, SequenceKey("g", 0), (3, 4), 2, (), sampling)])
    before = masks.apply(torch.zeros(1, tiny_llama.VOCABULARY_SIZE), np.array([0]))[0]

    proposer = Writes(rows, held.tokenizer.encode(guess))
    counts, certain = GuidedDrafts(rows, masks).propose(proposer, np.array([0]), np.array([2]), np.array([5]))

    assert held.text(rows.token_ids[0, 2 : 2 + counts[0]].tolist()) == expected
    assert certain.tolist() == [num_certain]
    assert proposer.asked == asked
    after = masks.apply(torch.zeros(1, tiny_llama.VOCABULARY_SIZE), np.array([0]))[0]
    assert torch.equal(before, after)
