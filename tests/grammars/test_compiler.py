"""Grammars that are compiled, kept, and refused."""

import asyncio
import json
import threading
from collections import abc

import pytest
import pytest_asyncio

from engine.errors import GrammarsBusyError, InvalidFieldError
from engine.grammars import compiler, turns
from engine.grammars.compiler import MAX_SOURCE_BYTES, GrammarCompiler, Vocabulary
from engine.grammars.json_schemas import MAX_OPTIONAL_PROPERTIES
from engine.grammars.matcher import Constraint
from engine.grammars.source import GrammarKind, GrammarSource
from engine.grammars.turns import MAX_COMPILING
from tests.gateway.fake_engine import END_TOKEN, VOCABULARY_SIZE

LONGEST_S = 30.0  # a test that waits for ever fails
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def schema(value) -> GrammarSource:
    return GrammarSource(GrammarKind.JSON_SCHEMA, value if isinstance(value, str) else json.dumps(value))


def regex(text: str) -> GrammarSource:
    return GrammarSource(GrammarKind.REGEX, text)


def lark(text: str) -> GrammarSource:
    return GrammarSource(GrammarKind.LARK, text)


async def accepts(grammars: GrammarCompiler, source: GrammarSource, text: str) -> bool:
    """Whether `text` is a whole output."""
    matcher = Constraint(await grammars.compile(source)).begin(text.encode())
    return not matcher.problem and (matcher.is_complete or matcher.inner.is_accepting())


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        (schema(SCHEMA), '{"a": 17}', '{"a": "x"}'),
        (schema(SCHEMA), '{"a":17}', '{"a": 17, "b": 1}'),
        (schema({"type": "object"}), '{"x": [1, {"y": null}]}', "[1]"),
        (regex("[ab]{2,3}"), "aba", "abab"),
        (regex("Zwölf|zwei"), "Zwölf", "Zwolf"),
        (lark('start: "a" b\nb: "b" b | "c"'), "abbc", "abb"),
    ],
)
async def test_an_output_is_held_to_its_grammar(grammars, source, good, bad):
    assert await accepts(grammars, source, good)
    assert not await accepts(grammars, source, bad)


async def test_json_is_laid_out_in_one_line_unless_the_schema_says_otherwise(grammars):
    loose = {**SCHEMA, "x-guidance": {"whitespace_flexible": True}}
    spaced = '{\n  "a" : 17\n}'
    assert not await accepts(grammars, schema(SCHEMA), spaced)
    assert await accepts(grammars, schema(loose), spaced)


@pytest.mark.parametrize("num_optional", [0, MAX_OPTIONAL_PROPERTIES])
async def test_a_wide_object_can_be_written(grammars, num_optional):
    """As many optional properties as there may be, and twice as many that are required."""
    names = [f"p{number}" for number in range(3 * MAX_OPTIONAL_PROPERTIES)]
    wide = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    required = names[num_optional:] if num_optional else names
    text = json.dumps(dict.fromkeys(names, 1))

    assert await accepts(grammars, schema({**wide, "required": required}), text)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (schema("{"), "is no JSON"),
        (schema("[]"), "must be a JSON object"),
        (schema({"type": "nonsense"}), "nonsense"),
        (schema({"type": "string", "pattern": "(?=x)y"}), "cannot be held to"),
        (schema({"type": "object", "patternProperties": {"(": {}}}), "cannot be held to"),
        (schema({"$ref": "https://example.org/schema.json"}), "cannot be held to"),
        (schema({"type": "object", "if": {"required": ["a"]}}), "if"),
        (schema({"x-guidance": {"lenient": True}, "if": {}}), "x-guidance may set"),
        (schema({"items": {"properties": {str(n): {} for n in range(257)}}}), "at most 256 properties"),
        (regex("a("), "cannot be held to"),
        (lark("start: missing"), "missing"),
        (lark(""), "cannot be held to"),
        (regex("x" * (MAX_SOURCE_BYTES + 1)), "at most"),
        (regex("ö" * (MAX_SOURCE_BYTES // 2 + 1)), "at most"),
        (schema("[" * 100_000), "is no JSON"),
    ],
)
async def test_a_grammar_that_is_wrong_or_not_supported_is_refused_by_name(grammars, source, words):
    with pytest.raises(InvalidFieldError, match=words) as refused:
        await grammars.compile(source)
    assert refused.value.field == f"sampling.grammar.{source.kind.value}"
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    "source",
    [
        regex(r"x<\|end\|>y"),
        lark('start: "x<|end|>y"'),
        schema({"const": "x<|end|>y"}),
        schema({"type": "object", "properties": {"<|end|>": {"const": 1}}, "required": ["<|end|>"]}),
    ],
)
async def test_text_that_reads_like_a_control_token_is_written_as_text(grammars, source):
    output, written = Constraint(await grammars.compile(source)).begin([]), []
    while not output.problem and (forced := output.forced_token_ids or any_one(output)):
        output.push(forced)
        written += forced
    assert output.is_complete
    assert b"<|end|>" in bytes(written)


def any_one(output) -> list[int]:
    """A token that may follow, if any may."""
    mask = output.inner.compute_bitmask() if not output.is_complete else b""
    allowed = [byte * 8 + bit for byte, bits in enumerate(mask) for bit in range(8) if bits >> bit & 1]
    return allowed[-1:]


@pytest.mark.parametrize(
    "source", [schema({"$ref": "#"}), lark("start: start"), lark("start: <|end|>"), regex(r"[^\s\S]")]
)
async def test_a_refusal_tells_nothing_of_the_library_but_the_cause(grammars, source):
    with pytest.raises(InvalidFieldError) as refused:
        await grammars.compile(source)
    assert not any(words in str(refused.value) for words in ("<state>", "NoExtensionBias", "available"))


async def test_a_tokenizer_of_an_unknown_kind_serves_no_grammars():
    with pytest.raises(InvalidFieldError, match="tokenizer is not supported") as refused:
        await GrammarCompiler(Vocabulary(b"{}", 1000, (1,))).compile(regex("a"))
    assert refused.value.field == "sampling.grammar"


async def test_a_grammar_is_compiled_once_for_all_who_ask(grammars, monkeypatch):
    compiled = []
    inner = compiler._compiled
    monkeypatch.setattr(compiler, "_compiled", lambda *given: compiled.append(given) or inner(*given))
    found = await asyncio.gather(*(grammars.compile(schema(SCHEMA)) for _ in range(5)))
    found.append(await grammars.compile(schema(SCHEMA)))
    assert len(set(map(id, found))) == 1
    assert len(compiled) == 1
    await grammars.compile(regex("b"))
    assert len(compiled) == 2


async def test_the_grammars_used_last_are_kept(grammars, monkeypatch):
    monkeypatch.setattr(compiler, "MAX_COMPILED", 2)
    first = await grammars.compile(regex("a"))
    await grammars.compile(regex("b"))
    assert await grammars.compile(regex("a")) is first
    await grammars.compile(regex("c"))
    assert await grammars.compile(regex("a")) is first
    assert len(grammars._compiled) == 2


async def test_who_asked_in_vain_leaves_the_others_their_grammar(grammars):
    patient = asyncio.create_task(grammars.compile(schema(SCHEMA)))
    hasty = asyncio.create_task(grammars.compile(schema(SCHEMA)))
    await asyncio.sleep(0)
    hasty.cancel()
    assert await patient is await grammars.compile(schema(SCHEMA))
    assert hasty.cancelled()


class Slow:
    """Stands in for the library: what it compiles takes until it is let go."""

    def __init__(self) -> None:
        self._aio = asyncio.get_running_loop()
        self._is_let_go = threading.Event()
        self.begun: asyncio.Queue[str] = asyncio.Queue()

    def __call__(self, _vocabulary: Vocabulary, source: GrammarSource) -> str:
        self._aio.call_soon_threadsafe(self.begun.put_nowait, source.text)
        self._is_let_go.wait()
        return f"{source.text} compiled"

    async def are_busy(self, grammars: GrammarCompiler) -> list[asyncio.Task]:
        """Every turn is taken, by these grammars, each another tenant's."""
        taken = [ask(grammars, f"busy {nth}", f"busy {nth}") for nth in range(MAX_COMPILING)]
        for _ in taken:
            await self.begun.get()
        return taken

    def let_go(self) -> None:
        self._is_let_go.set()


def ask(grammars: GrammarCompiler, text: str, tenant_id: str = "") -> asyncio.Task:
    return asyncio.create_task(grammars.compile(regex(text), tenant_id))


async def settle() -> None:
    """Whatever can go on without a thread has done so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def leave(*askers: asyncio.Task) -> None:
    for asker in askers:
        asker.cancel()
    await asyncio.wait(askers)


@pytest_asyncio.fixture
async def slow(monkeypatch) -> abc.AsyncIterator[Slow]:
    stand_in = Slow()
    monkeypatch.setattr(compiler, "_compiled", stand_in)
    yield stand_in
    stand_in.let_go()


async def test_a_grammar_that_takes_too_long_is_refused_and_kept_once_it_is_there(grammars, slow, monkeypatch):
    monkeypatch.setattr(compiler, "COMPILE_TIMEOUT_S", 0.0)
    with pytest.raises(InvalidFieldError, match="within 0 s"):
        await grammars.compile(regex("a"))
    monkeypatch.setattr(compiler, "COMPILE_TIMEOUT_S", 10.0)
    (work,) = grammars._pending.values()
    slow.let_go()
    await asyncio.wait([work.task])
    assert await grammars.compile(regex("a")) == "a compiled"
    assert slow.begun.qsize() == 1


async def test_a_thread_that_takes_too_long_keeps_its_turn(grammars, slow, monkeypatch):
    monkeypatch.setattr(compiler, "COMPILE_TIMEOUT_S", 0.0)
    for refused in await slow.are_busy(grammars):
        with pytest.raises(InvalidFieldError):
            await refused
    asker = ask(grammars, "a")
    await settle()
    assert slow.begun.empty()
    await leave(asker)


async def test_the_wait_for_a_turn_is_no_part_of_the_time_to_compile(grammars, slow, monkeypatch):
    await slow.are_busy(grammars)
    monkeypatch.setattr(compiler, "COMPILE_TIMEOUT_S", 0.0)
    asker = ask(grammars, "a")
    await settle()
    assert not asker.done()
    monkeypatch.setattr(compiler, "COMPILE_TIMEOUT_S", 10.0)
    slow.let_go()
    assert await asker == "a compiled"


async def test_a_grammar_that_nobody_wants_any_more_has_no_turn(grammars, slow):
    await slow.are_busy(grammars)
    askers = [ask(grammars, text) for text in ("left", "left", "shared", "shared")]
    await settle()
    await leave(*askers[:3])
    slow.let_go()
    assert await askers[3] == "shared compiled"
    await grammars.compile(regex("last"))
    assert [slow.begun.get_nowait() for _ in range(slow.begun.qsize())] == ["shared", "last"]


async def test_a_grammar_that_was_dropped_is_compiled_for_who_asks_again(grammars, slow):
    taken = await slow.are_busy(grammars)
    asker = ask(grammars, "a")
    await settle()
    await leave(asker)
    asker = ask(grammars, "a")
    slow.let_go()
    assert await asker == "a compiled"
    await asyncio.gather(*taken)
    assert not grammars._pending


async def test_only_so_many_grammars_wait_for_a_turn(grammars, slow, monkeypatch):
    monkeypatch.setattr(turns, "MAX_WAITING", 1)
    taken = await slow.are_busy(grammars)
    waiting, joined = ask(grammars, "a"), ask(grammars, "a")
    await settle()
    with pytest.raises(GrammarsBusyError):
        await grammars.compile(regex("b"))
    assert not any(asker.done() for asker in (*taken, waiting, joined))
    await leave(waiting, joined)
    asker = ask(grammars, "b")
    slow.let_go()
    assert await asker == "b compiled"


async def test_a_tenant_whose_grammars_take_every_place_gives_some_up_to_another(grammars, slow, monkeypatch):
    monkeypatch.setattr(turns, "MAX_WAITING", 4)
    taken = await slow.are_busy(grammars)
    flood = [ask(grammars, f"flood {nth}", "a") for nth in range(5)]
    await settle()
    with pytest.raises(GrammarsBusyError):  # its own flood is its own limit
        await flood[4]
    others = [ask(grammars, f"other {nth}", "b") for nth in range(3)]
    await settle()
    for displaced in (flood[3], flood[2]):  # the newest ones
        with pytest.raises(GrammarsBusyError):
            await displaced
    with pytest.raises(GrammarsBusyError):  # as many places as the flood has now
        await others[2]
    slow.let_go()
    served = await asyncio.gather(*flood[:2], *others[:2], *taken)
    assert all(each.endswith("compiled") for each in served)
    assert not grammars._pending
    assert await ask(grammars, "flood 3", "a") == "flood 3 compiled"


async def test_a_flood_of_grammars_that_take_for_ever_holds_up_nobody_else(grammars, slow, monkeypatch):
    """Not even when those who asked for them have given up, as threads go on."""
    monkeypatch.setattr(compiler, "COMPILE_TIMEOUT_S", 0.0)
    flood = [ask(grammars, f"flood {nth}", "a") for nth in range(5)]
    assert await slow.begun.get() == "flood 0"
    with pytest.raises(InvalidFieldError):
        await flood[0]
    monkeypatch.setattr(compiler, "COMPILE_TIMEOUT_S", 10.0)
    other = ask(grammars, "other", "b")
    assert await slow.begun.get() == "other"
    await settle()
    assert slow.begun.empty()
    slow.let_go()
    assert await other == "other compiled"
    await asyncio.gather(*flood[1:])
    assert not grammars._pending


async def test_what_waits_begins_at_once_when_a_tenant_without_a_turn_wants_it_too(grammars, slow):
    first, waiting = ask(grammars, "first", "a"), ask(grammars, "shared", "a")
    assert await slow.begun.get() == "first"
    await settle()
    assert slow.begun.empty()  # the turn that is left is another tenant's
    joined = ask(grammars, "shared", "b")
    async with asyncio.timeout(LONGEST_S):
        assert await slow.begun.get() == "shared"
    slow.let_go()
    assert await asyncio.gather(first, waiting, joined) == ["first compiled", *["shared compiled"] * 2]
    assert not grammars._pending


async def test_an_output_that_ignores_ends_has_one_only_where_nothing_else_may_follow(grammars):
    compiled = await grammars.compile(regex("ab?"))
    for ends_late, expected in ((False, {ord("b"), END_TOKEN}), (True, {ord("b")})):
        assert allowed_after(Constraint(compiled, ends_late=ends_late), b"a") == expected
    assert Constraint(compiled, ends_late=True).begin(b"ab").is_complete


def allowed_after(constraint: Constraint, output: bytes) -> set[int]:
    import numpy as np
    from llguidance import LLExecutor

    from engine.grammars.matcher import BITS_PER_WORD, fill_masks

    words = np.zeros((1, -(-VOCABULARY_SIZE // BITS_PER_WORD)), dtype=np.int32)
    matcher = constraint.begin(output)
    fill_masks(LLExecutor(1), [matcher], words)
    matcher.keep_open(words[0])
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())
