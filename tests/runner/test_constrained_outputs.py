"""Outputs of real and random models, held to grammars: valid, whatever else a request asks for, and alone at fault."""

import asyncio
import json
import random

import jsonschema
import pytest
import torch

from engine.core.types import SamplingParams
from engine.grammars.compiler import GrammarCompiler, Vocabulary
from engine.grammars.dead_ends import DeadEnd
from engine.grammars.matcher import Constraint
from engine.grammars.source import GrammarKind, GrammarSource
from engine.model.info import LoadedModel
from engine.model.loader import load_model
from gateway.tokenizer import SpecialTokens, Tokenizer
from gateway.tokenizer.output_text import OutputText
from tests.grammars.schemas import random_schema
from tests.model import tiny_llama
from tests.runner.driver import Driver

LONGEST = 400  # output tokens; beyond all that the schemas allow
LONGEST_FREE = 40  # of an output that is held to nothing
NUM_ROWS = 5


class Held:
    """A model, its grammars and its text."""

    def __init__(self, model: LoadedModel) -> None:
        info = model.info
        self.model = model
        self.grammars = GrammarCompiler(Vocabulary(info.tokenizer_json, info.vocabulary_size, info.eos_token_ids))
        special = SpecialTokens(info.bos_token_id, info.eos_token_ids, info.pad_token_id, info.unk_token_id)
        self.tokenizer = Tokenizer.from_model_info(info.tokenizer_json, "", special, info.context_tokens)

    def constraint(self, kind: GrammarKind, text: str, *, ends_late: bool = False) -> Constraint:
        return Constraint(asyncio.run(self.grammars.compile(GrammarSource(kind, text))), ends_late=ends_late)

    def schema(self, schema, **options) -> Constraint:
        return self.constraint(GrammarKind.JSON_SCHEMA, json.dumps(schema), **options)

    def text(self, token_ids) -> str:
        output = OutputText(self.tokenizer, hidden_token_ids=self.tokenizer.special_token_ids)
        return output.push(token_ids).text + output.finish()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Held:
    folder = tiny_llama.write_folder(tmp_path_factory.mktemp("tiny") / "m", tiny_llama.make_model())
    return Held(load_model(folder, dtype="float32", device="cpu"))


def run(driver: Driver, end_token_ids, *, rng: random.Random | None = None) -> dict[int, str]:
    """Decode every row to its end, in chunks and with preemptions by `rng`; what failed, by row."""
    failed: dict[int, str] = {}
    ended: set[int] = set()
    while going := [row for row in driver.rows if row not in ended and row not in failed]:
        chunks = {row: driver.rows[row].num_pending for row in going}
        if rng is not None:
            chunks = {row: rng.randint(1, pending) for row, pending in chunks.items() if rng.random() < 0.9}
        if not chunks:
            continue
        output = driver.step(dict(sorted(chunks.items(), key=lambda chunk: chunk[1] > 1)))
        failed |= output.errors
        for row in output.accepted:
            state = driver.rows[row]
            longest = LONGEST_FREE if state.sampling.constraint is None else LONGEST
            if row in output.ended or state.output[-1] in end_token_ids or len(state.output) >= longest:
                ended.add(row)
        if rng is not None and rng.random() < 0.1:
            driver.preempt(rng.choice(going))
    return failed


def random_sampling(rng: random.Random, constraint: Constraint) -> SamplingParams:
    return SamplingParams(
        temperature=rng.choice([0.0, 0.7, 1.0, 3.0]),
        top_k=rng.choice([0, 0, 5]),
        top_p=rng.choice([1.0, 0.9]),
        presence_penalty=rng.choice([0.0, 1.5]),
        repetition_penalty=rng.choice([1.0, 1.3]),
        seed=rng.randrange(2**32),
        num_logprobs=rng.choice([None, 2]),
        logit_biases=rng.choice([(), ((rng.randrange(50), 100.0),)]),
        constraint=constraint,
    )


def check_sweep(held: Held, make_driver, seed: int, *, prompt=(3, 4, 5)) -> None:
    """Rows with schemas of their own, beside one that has none, preempted at random."""
    rng = random.Random(seed)
    schemas = {row: random_schema(rng) for row in range(NUM_ROWS - 1)}
    driver = make_driver(held.model, num_rows=NUM_ROWS, num_blocks=1024)
    for row, schema in schemas.items():
        constraint = held.schema(schema, ends_late=rng.random() < 0.3)
        driver.add(row, prompt, random_sampling(rng, constraint))
    driver.add(NUM_ROWS - 1, prompt, SamplingParams(seed=seed))
    assert run(driver, held.model.info.eos_token_ids, rng=rng) == {}
    for row, schema in schemas.items():
        text = held.text(driver.rows[row].output)
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())


@pytest.mark.parametrize("seed", range(5))
def test_outputs_of_a_random_model_follow_random_schemas(tiny, make_driver, seed):
    check_sweep(tiny, make_driver, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_outputs_of_a_random_model_follow_many_random_schemas(tiny, make_driver, seed):
    check_sweep(tiny, make_driver, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_outputs_of_the_default_model_follow_random_schemas(default_model, make_driver, seed):
    check_sweep(Held(default_model), make_driver, seed)


def test_the_default_model_fills_in_a_schema(default_model, make_driver):
    held = Held(default_model)
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "inhabitants": {"type": "integer", "maximum": 10**7}},
        "required": ["city", "inhabitants"],
        "additionalProperties": False,
    }
    driver = make_driver(default_model, num_rows=1)
    prompt = held.tokenizer.encode("The capital of France as JSON: ")
    driver.add(0, prompt, SamplingParams(temperature=0.0, constraint=held.schema(schema)))
    assert run(driver, default_model.info.eos_token_ids) == {}
    document = json.loads(held.text(driver.rows[0].output))
    jsonschema.validate(document, schema)
    assert document["city"] == "Paris"


def test_a_grammar_that_cannot_go_on_ends_its_request_and_no_other(tiny, make_driver):
    free = tiny.schema({"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": False})
    opening = tiny.tokenizer.encode("{")[0]
    driver = make_driver(tiny.model)
    driver.add(0, (3, 4), SamplingParams(temperature=0.0, constraint=free, allowed_token_ids=(opening,)))
    driver.add(1, (3, 4), SamplingParams(temperature=0.0, constraint=free))
    driver.add(2, (3, 4), SamplingParams(temperature=0.0))
    failed = run(driver, tiny.model.info.eos_token_ids)
    assert failed == {0: DeadEnd.NOTHING_ALLOWED}
    assert driver.rows[0].output == [opening]
    assert isinstance(json.loads(tiny.text(driver.rows[1].output)), dict)


def test_output_ends_with_its_grammar_and_without_an_end_token_where_nothing_may_follow(tiny, make_driver):
    driver = make_driver(tiny.model)
    driver.add(0, (3, 4), SamplingParams(seed=1, constraint=tiny.constraint(GrammarKind.REGEX, "[0-9]{5}")))
    assert run(driver, ()) == {}
    output = driver.rows[0].output
    assert len(tiny.text(output)) == 5
    assert not set(output) & set(tiny.model.info.eos_token_ids)


def test_output_that_ignores_ends_goes_on_as_long_as_its_grammar_lets_it(tiny, make_driver):
    driver = make_driver(tiny.model)
    for row, ends_late in enumerate((False, True)):
        constraint = tiny.constraint(GrammarKind.REGEX, "[ab]{1,40}", ends_late=ends_late)
        biases = tuple((token_id, 100.0) for token_id in tiny.model.info.eos_token_ids)
        driver.add(row, (3, 4), SamplingParams(temperature=0.0, constraint=constraint, logit_biases=biases))
    assert run(driver, tiny.model.info.eos_token_ids) == {}
    assert len(tiny.text(driver.rows[0].output)) < 40
    assert len(tiny.text(driver.rows[1].output)) == 40


def test_output_that_ignores_ends_has_one_where_its_list_leaves_nothing_else(tiny, make_driver):
    letter, end = tiny.tokenizer.encode("a")[0], tiny.model.info.eos_token_ids[0]
    constraint = tiny.constraint(GrammarKind.REGEX, "ab?", ends_late=True)
    driver = make_driver(tiny.model)
    driver.add(0, (3, 4), SamplingParams(temperature=0.0, constraint=constraint, allowed_token_ids=(letter, end)))
    assert run(driver, tiny.model.info.eos_token_ids) == {}
    assert driver.rows[0].output == [letter, end]


def test_log_probabilities_are_those_of_the_model_without_the_grammar(tiny, make_driver):
    driver = make_driver(tiny.model)
    constraint = tiny.constraint(GrammarKind.REGEX, "[0-9]{3}")
    row = driver.add(0, (3, 4), SamplingParams(temperature=0.0, constraint=constraint, num_logprobs=1))
    output = driver.step({0: 2})
    (entry,) = output.logprobs[0]
    logprobs = driver.logits[0].log_softmax(-1)
    assert entry.logprob == pytest.approx(logprobs[row.output[0]].item(), abs=1e-5)
    assert entry.top[0][1] == pytest.approx(torch.max(logprobs).item(), abs=1e-5)
