"""Where a grammar has led to nothing: which fields are to blame for it, and what is known before it begins."""

import pytest

from engine.core.types import SamplingParams
from engine.grammars.compiler import GrammarCompiler
from engine.grammars.dead_ends import OUTPUT_LEFT, DeadEnd, fields_to_blame
from engine.grammars.matcher import Constraint
from engine.grammars.source import GrammarKind, GrammarSource

REGEX = "sampling.grammar.regex"
LIST = "sampling.allowed_token_ids"
# Behind the first letter more may come next than the library keeps apart.
CROWD = "\n".join(
    ['start: "z" any', f"any: {' | '.join(f'e{n}' for n in range(2500))}", *(f'e{n}: "a" "b{n}"' for n in range(2500))]
)


@pytest.mark.parametrize(
    ("error", "allowed", "blamed"),
    [
        (DeadEnd.NOTHING_ALLOWED, (97,), (REGEX, LIST)),
        (DeadEnd.NOTHING_ALLOWED, None, (REGEX,)),
        (DeadEnd.TOO_COMPLEX, (97,), (REGEX,)),
        (OUTPUT_LEFT, (97,), ()),
        ("the engine had to start anew", (97,), ()),
        (DeadEnd.NOTHING_ALLOWED.value, (97,), ()),  # the same words from somewhere else
        (None, (97,), ()),
    ],
)
async def test_what_a_request_asks_for_is_to_blame_where_it_leaves_nothing(
    grammars: GrammarCompiler, error: str | None, allowed: tuple[int, ...] | None, blamed: tuple[str, ...]
):
    compiled = await grammars.compile(GrammarSource(GrammarKind.REGEX, "[ab]c"))
    sampling = SamplingParams(constraint=Constraint(compiled), allowed_token_ids=allowed)

    assert fields_to_blame(error, sampling) == blamed


async def test_a_grammar_that_was_made_of_something_else_is_known_by_that(grammars: GrammarCompiler):
    lark = 'start: "a"'
    names = [
        (await grammars.compile(GrammarSource(GrammarKind.LARK, lark, name=name))).field
        for name in ("chat.tools", "", "chat.tools")
    ]

    assert names == ["chat.tools", "sampling.grammar.lark", "chat.tools"]


async def test_what_an_output_may_begin_with_is_known_before_it_does(grammars: GrammarCompiler):
    compiled = await grammars.compile(GrammarSource(GrammarKind.REGEX, "[ab]c"))

    assert compiled.has_first(b"xb")
    assert not compiled.has_first(b"cx")
    assert not compiled.has_first(())


async def test_a_grammar_that_is_too_much_is_told_from_an_output_that_has_left_its_own(grammars: GrammarCompiler):
    crowd = Constraint(await grammars.compile(GrammarSource(GrammarKind.LARK, CROWD))).begin(b"z")
    left = Constraint(await grammars.compile(GrammarSource(GrammarKind.REGEX, "ab"))).begin(b"ax")

    assert (bool(crowd.problem), crowd.is_too_complex) == (True, True)
    assert (bool(left.problem), left.is_too_complex) == (True, False)
