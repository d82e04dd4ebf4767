"""Compiles grammars off the engine's thread, each once, within a size and a time.

What one grammar may cost is limited by the library: its size, the states of its lexer, and the work for one mask, some
15 ms at most. A few are compiled at a time, some more wait for their turn as long as somebody wants them, and beyond
those none is taken. Asyncio thread only, but for what it hands to other threads. Raises InvalidFieldError for a grammar
that is wrong or that the library cannot hold outputs to, with the library's own words.
"""

import asyncio
import hashlib
import json
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field

from llguidance import LLMatcher, LLTokenizer

from engine.errors import GrammarsBusyError, InvalidFieldError
from engine.grammars.json_schemas import require_modest
from engine.grammars.matcher import CompiledGrammar
from engine.grammars.source import GrammarKind, GrammarSource

MAX_SOURCE_BYTES = 256 * 1024
MAX_COMPILED = 128  # grammars that are kept, the last ones used
MAX_COMPILING = 2  # threads; what is slow to compile must not take every core
MAX_WAITING = 64  # grammars whose turn has not come
COMPILE_TIMEOUT_S = 10.0  # from its turn on
MAX_PROBLEM_CHARACTERS = 400
# One space at most where JSON allows any number: a model that likes blank space would write nothing else. A schema says
# otherwise under its own "x-guidance".
ITEM_SEPARATOR, KEY_SEPARATOR = ", ?", ": ?"


@dataclass(slots=True)
class Vocabulary:
    """The bytes of a model's tokens, for the library. Built once, by the thread that asks first.

    tokenizer_json  the Hugging Face `tokenizers` form
    size            tokens that the model can sample; those that the tokenizer does not know have no bytes
    end_token_ids   end an output; the first one is the model's own
    """

    tokenizer_json: bytes
    size: int
    end_token_ids: tuple[int, ...]
    _built: LLTokenizer | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def build(self) -> LLTokenizer:
        """The same object each time. Raises InvalidFieldError where the library does not know the tokenizer's kind."""
        with self._lock:
            if self._built is None:
                end_token_id = self.end_token_ids[0] if self.end_token_ids else None
                try:
                    text = self.tokenizer_json.decode()
                    self._built = LLTokenizer(text, n_vocab=self.size, eos_token=end_token_id)
                except Exception as error:
                    problem = f"cannot be had from this model, whose tokenizer is not supported: {error}"
                    raise InvalidFieldError("sampling.grammar", _short(problem)) from error
            return self._built


class _Work:
    """One grammar that waits for its turn, or that a thread compiles: no thread can be stopped."""

    def __init__(self, source: GrammarSource) -> None:
        self.source = source
        self.num_askers = 0
        self.begun = asyncio.Event()
        self._gives_up_at = 0.0  # by the clock of asyncio

    def begin(self) -> None:
        """Its turn has come."""
        self._gives_up_at = asyncio.get_running_loop().time() + COMPILE_TIMEOUT_S
        self.begun.set()

    async def result(self, task: "asyncio.Task[CompiledGrammar]") -> CompiledGrammar:
        """What `task`, which does this work, comes to. Raises InvalidFieldError."""
        await self.begun.wait()
        try:
            async with asyncio.timeout_at(self._gives_up_at):
                return await asyncio.shield(task)  # others may wait for it, too
        except TimeoutError:
            text = f"could not be compiled within {COMPILE_TIMEOUT_S:g} s"
            raise InvalidFieldError(self.source.field, text) from None


class GrammarCompiler:
    """The grammars of one model."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._compiled: OrderedDict[bytes, CompiledGrammar] = OrderedDict()
        self._pending: dict[bytes, tuple[_Work, asyncio.Task[CompiledGrammar]]] = {}
        self._turns = asyncio.Semaphore(MAX_COMPILING)

    async def prepare(self) -> None:
        """The vocabulary is built, which holds up every thread of the process: a quarter of a second for 49,152 tokens.
        A model whose tokenizer is not supported is served without grammars."""
        with suppress(InvalidFieldError):
            await asyncio.to_thread(self._vocabulary.build)

    async def compile(self, source: GrammarSource) -> CompiledGrammar:
        """The grammar, ready for outputs. Raises InvalidFieldError and GrammarsBusyError."""
        if len(source.text) > MAX_SOURCE_BYTES or len(source.text.encode()) > MAX_SOURCE_BYTES:
            raise InvalidFieldError(source.field, f"must have at most {MAX_SOURCE_BYTES} bytes")
        key = hashlib.sha256(f"{source.kind.value}\0{source.text}".encode()).digest()
        known = self._compiled.get(key)
        if known is not None:
            self._compiled.move_to_end(key)
            return known
        work, task = self._pending.get(key) or self._enter(key, source)
        work.num_askers += 1
        try:
            return await work.result(task)
        finally:
            work.num_askers -= 1
            if not work.num_askers and not work.begun.is_set():
                del self._pending[key]  # who asks from now on is not to wait for what is cancelled
                task.cancel()

    def _enter(self, key: bytes, source: GrammarSource) -> "tuple[_Work, asyncio.Task[CompiledGrammar]]":
        if len(self._pending) >= MAX_COMPILING + MAX_WAITING:
            raise GrammarsBusyError
        work = _Work(source)
        task = asyncio.create_task(self._compile(work))
        task.add_done_callback(lambda done: self._keep(key, done))
        self._pending[key] = work, task
        return work, task

    async def _compile(self, work: _Work) -> CompiledGrammar:
        async with self._turns:
            work.begin()
            return await asyncio.to_thread(_compiled, self._vocabulary, work.source)

    def _keep(self, key: bytes, done: "asyncio.Task[CompiledGrammar]") -> None:
        if done.cancelled():
            return
        del self._pending[key]
        if done.exception() is not None:
            return
        self._compiled[key] = done.result()
        while len(self._compiled) > MAX_COMPILED:
            self._compiled.popitem(last=False)


def _compiled(vocabulary: Vocabulary, source: GrammarSource) -> CompiledGrammar:
    matcher = LLMatcher(vocabulary.build(), _library_form(source), log_level=0)
    if not matcher.is_error():
        mask = matcher.compute_bitmask()  # the first one is the slowest; outputs' copies share what it found out
        if not any(mask) and not matcher.is_error():
            raise InvalidFieldError(source.field, "allows no output at all")
    if matcher.is_error():
        raise InvalidFieldError(source.field, _short(f"cannot be held to: {matcher.get_error()}"))
    return CompiledGrammar(matcher, vocabulary.end_token_ids)


def _library_form(source: GrammarSource) -> str:
    match source.kind:
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(source.text)
        case GrammarKind.LARK:
            return LLMatcher.grammar_from_lark(source.text)
        case GrammarKind.JSON_SCHEMA:
            return _from_schema(source)


def _from_schema(source: GrammarSource) -> str:
    try:
        schema = json.loads(source.text)
        if not isinstance(schema, dict):
            raise InvalidFieldError(source.field, "must be a JSON object")
        require_modest(schema, source.field)
        return LLMatcher.grammar_from_json_schema(
            source.text,
            defaults={
                "whitespace_flexible": False,
                "item_separator": ITEM_SEPARATOR,
                "key_separator": KEY_SEPARATOR,
            },
        )
    except (ValueError, RecursionError) as error:
        raise InvalidFieldError(source.field, _short(f"is no JSON: {error}")) from error


def _short(problem: str) -> str:
    return " ".join(problem.split())[:MAX_PROBLEM_CHARACTERS]
