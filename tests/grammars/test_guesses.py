"""Grammars that are moved along with guesses and taken back are where they were, whatever the guesses were."""

import asyncio
import json
import random

import numpy as np
import pytest
from llguidance import LLExecutor

from engine.grammars.compiler import GrammarCompiler, Vocabulary
from engine.grammars.matcher import BITS_PER_WORD, Constraint, OutputMatcher, fill_masks
from engine.grammars.source import GrammarKind, GrammarSource
from tests.grammars.schemas import random_schema
from tests.model.tiny_vocabulary import VOCABULARY_SIZE, tokenizer_document

END_TOKEN = 1
NUM_WORDS = -(-VOCABULARY_SIZE // BITS_PER_WORD)
REGEXES = ("[a-c]{1,9}", "(ab|abc|b)*", "(the |cat )?sat{2,4}", "x*", "[0-9]{3}-[0-9]{3}")
LARK = (
    'start: "a" b\nb: "b" b | "c"',
    'start: "(" start ")" | "x" | start "," start',
    'start: (WORD " ")+ "end"\nWORD: /[a-f]+/',
)


@pytest.fixture(scope="module")
def grammars() -> GrammarCompiler:
    return GrammarCompiler(Vocabulary(json.dumps(tokenizer_document()).encode(), VOCABULARY_SIZE, (END_TOKEN,)))


def random_constraint(grammars: GrammarCompiler, rng: random.Random) -> Constraint:
    """A schema, an expression or a grammar."""
    schema = json.dumps(random_schema(rng))
    source = rng.choice(
        [
            GrammarSource(GrammarKind.JSON_SCHEMA, schema),
            GrammarSource(GrammarKind.REGEX, rng.choice(REGEXES)),
            GrammarSource(GrammarKind.LARK, rng.choice(LARK)),
        ]
    )
    return Constraint(asyncio.run(grammars.compile(source)), ends_late=rng.random() < 0.3)


def mask_of(matcher: OutputMatcher) -> np.ndarray:
    words = np.empty((1, NUM_WORDS), dtype=np.int32)
    fill_masks(LLExecutor(1), [matcher], words)
    return np.unpackbits(words.view(np.uint8), count=VOCABULARY_SIZE, bitorder="little").astype(bool)


def guess(matcher: OutputMatcher, rng: random.Random) -> None:
    """Moves it along in one of the ways that there are, looks what may follow, and takes it back."""
    way, num_pushed = rng.choice(["any", "allowed", "forced"]), 0
    for _ in range(rng.randint(1, 4)):
        if way == "forced":
            num_pushed += matcher.push_while_open(matcher.forced_token_ids)
        elif way == "any":
            num_pushed += matcher.push_while_open([rng.randrange(VOCABULARY_SIZE) for _ in range(3)])
        else:
            allowed = np.flatnonzero(mask_of(matcher))
            if matcher.is_complete or not len(allowed):
                break
            matcher.push((int(rng.choice(allowed)),))
            num_pushed += 1
        mask_of(matcher)
    matcher.take_back(num_pushed)


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(s, marks=pytest.mark.slow) for s in range(12, 100))])
def test_guesses_leave_no_trace(grammars, seed):
    rng = random.Random(seed)
    constraint = random_constraint(grammars, rng)
    plain, guessed, output = constraint.begin(()), constraint.begin(()), []
    for _ in range(60):
        for _ in range(rng.randint(0, 2)):
            guess(guessed, rng)
        masks = mask_of(plain), mask_of(guessed)
        assert (masks[0] == masks[1]).all()
        assert (masks[0] == mask_of(constraint.begin(output))).all()
        token_id = int(rng.choice(np.flatnonzero(masks[0])))
        output.append(token_id)
        for matcher in (plain, guessed):
            matcher.push((token_id,))
        assert guessed.is_complete == plain.is_complete
        assert guessed.problem == plain.problem == ""
        if plain.is_complete:
            break


def test_what_cannot_go_on_behind_a_guess_can_before_it(grammars):
    constraint = random_constraint(grammars, random.Random(3))
    matcher = constraint.begin(())
    before = mask_of(matcher)
    matcher.push((int(np.flatnonzero(~before)[0]),))
    assert matcher.problem
    matcher.take_back(1)
    assert not matcher.problem
    assert (mask_of(matcher) == before).all()


def test_nothing_is_pushed_that_completes_the_output_or_may_not_follow(grammars):
    source = GrammarSource(GrammarKind.REGEX, "[a-c]{3}")
    matcher = Constraint(asyncio.run(grammars.compile(source))).begin(())
    a, x = (tokenizer_document()["model"]["vocab"][text] for text in "ax")
    assert matcher.push_while_open([a, x, a]) == 1
    assert matcher.push_while_open([a, a, a]) == 1
    assert not matcher.is_complete
    matcher.push((a,))
    assert matcher.is_complete
    assert matcher.push_while_open([a]) == 0
    assert matcher.forced_token_ids == []


def test_text_that_is_the_only_one_is_forced(grammars):
    schema = {"type": "object", "properties": {"ab": {"type": "boolean"}}, "required": ["ab"]}
    source = GrammarSource(GrammarKind.JSON_SCHEMA, json.dumps(schema | {"additionalProperties": False}))
    matcher = Constraint(asyncio.run(grammars.compile(source))).begin(())
    forced = matcher.forced_token_ids
    assert len(forced) >= 2
    for token_id in forced:
        assert np.flatnonzero(mask_of(matcher)).tolist() == [token_id]
        matcher.push((token_id,))
    assert mask_of(matcher).sum() > 1
