"""Compiles grammars off the engine's thread, each once, within a size and a time.

What one grammar may cost is limited by the library: its size, the states of its lexer, and the work for one mask, some
15 ms at most. A few are compiled at a time, some more wait for their turn as long as somebody wants them, and beyond
those none is taken (`turns`). Asyncio thread only, but for what it hands to other threads. Raises InvalidFieldError for
a grammar that is wrong or that the library cannot hold outputs to, with the library's own words, by the name of the
schema in it that is to blame.
"""

import asyncio
import hashlib
import itertools
import json
import re
import threading
from collections import OrderedDict, abc
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from llguidance import LLMatcher, LLTokenizer

from engine.errors import InvalidFieldError
from engine.grammars.control_names import without_control_names
from engine.grammars.json_schemas import require_followed, require_known_options, require_narrow, schemas_in
from engine.grammars.matcher import CompiledGrammar
from engine.grammars.source import GrammarKind, GrammarSource, NamedSchema
from engine.grammars.turns import Turns, Work

MAX_SOURCE_BYTES = 256 * 1024
MAX_COMPILED = 128  # grammars that are kept, the last ones used
COMPILE_TIMEOUT_S = 10.0  # from its turn on
MAX_PROBLEM_CHARACTERS = 400
_BEHIND_CAUSE = re.compile(r"(\s*<state>|; following special tokens are available).*", re.DOTALL)
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
                    text = without_control_names(self.tokenizer_json)
                    self._built = LLTokenizer(text, n_vocab=self.size, eos_token=end_token_id)
                except Exception as error:
                    problem = f"cannot be had from this model, whose tokenizer is not supported: {error}"
                    raise InvalidFieldError("sampling.grammar", _short(problem)) from error
            return self._built


class GrammarCompiler:
    """The grammars of one model."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._compiled: OrderedDict[bytes, CompiledGrammar] = OrderedDict()
        self._pending: dict[bytes, Work] = {}
        self._turns = Turns()

    async def prepare(self) -> None:
        """The vocabulary is built, which holds up every thread of the process: a quarter of a second for 49,152 tokens.
        A model whose tokenizer is not supported is served without grammars."""
        with suppress(InvalidFieldError):
            await asyncio.to_thread(self._vocabulary.build)

    async def compile(self, source: GrammarSource, tenant_id: str = "") -> CompiledGrammar:
        """The grammar, ready for outputs of this tenant. Raises InvalidFieldError and GrammarsBusyError."""
        if not _is_sized(source.text) or not _is_sized("".join(part.text for part in source.parts)):
            raise InvalidFieldError(source.field, f"must have at most {MAX_SOURCE_BYTES} bytes")
        key = _key(source)
        known = self._compiled.get(key)
        if known is not None:
            self._compiled.move_to_end(key)
            return known
        work = self._joined(key, source, tenant_id)
        try:
            return await work.result()
        finally:
            self._leave(work, tenant_id)

    def _joined(self, key: bytes, source: GrammarSource, tenant_id: str) -> Work:
        """The work that this tenant has asked for, too."""
        work = self._pending.get(key)
        if work is None:
            work = Work(key, source)
            displaced = self._turns.enter(work, tenant_id)
            if displaced is not None:
                del self._pending[displaced.key]
            self._pending[key] = work
        work.num_askers[tenant_id] += 1
        self._begin()  # what waited for others may have the turn that is left to this tenant
        return work

    def _leave(self, work: Work, tenant_id: str) -> None:
        work.num_askers[tenant_id] -= 1
        if not work.num_askers[tenant_id]:
            del work.num_askers[tenant_id]
        is_waiting = work.task is None and self._pending.get(work.key) is work
        if is_waiting and not work.num_askers:
            self._turns.leave(work)
            del self._pending[work.key]

    def _begin(self) -> None:
        while (work := self._turns.take_next()) is not None:
            task = asyncio.create_task(asyncio.to_thread(_compiled, self._vocabulary, work.source))
            task.add_done_callback(partial(self._keep, work))
            work.begin(task, COMPILE_TIMEOUT_S)

    def _keep(self, work: Work, done: "asyncio.Task[CompiledGrammar]") -> None:
        if done.cancelled():  # with everything else: the process ends
            return
        self._turns.end(work)
        del self._pending[work.key]
        if done.exception() is None:
            self._compiled[work.key] = done.result()
        while len(self._compiled) > MAX_COMPILED:
            self._compiled.popitem(last=False)
        self._begin()


def _is_sized(text: str) -> bool:
    return len(text) <= MAX_SOURCE_BYTES and len(text.encode()) <= MAX_SOURCE_BYTES


def _key(source: GrammarSource) -> bytes:
    """The same for grammars that are the same, and refused by the same names."""
    texts = [
        source.kind.value,
        source.field,
        source.text,
        *itertools.chain.from_iterable((p.field, p.text) for p in source.parts),
    ]
    return hashlib.sha256(json.dumps(texts).encode()).digest()


def _compiled(vocabulary: Vocabulary, source: GrammarSource) -> CompiledGrammar:
    tokenizer = vocabulary.build()
    for part in source.parts:  # each by itself, so that it is blamed, and no other part of the grammar
        _begun(tokenizer, _from_schema(part), part.field)
        require_followed(json.loads(part.text), part.field)
    matcher, first_mask = _begun(tokenizer, _library_form(source), source.field)
    for schema in _schemas_of(source):
        require_followed(schema, source.field)
    return CompiledGrammar(matcher, vocabulary.end_token_ids, source.field, first_mask)


def _begun(tokenizer: LLTokenizer, form: str, field: str) -> tuple[LLMatcher, bytes]:
    """A matcher, and the mask of a first token. Raises InvalidFieldError where there is none."""
    matcher = LLMatcher(tokenizer, form, log_level=0)
    # The first mask is the slowest; outputs' copies share what it found out.
    mask = b"" if matcher.is_error() else matcher.compute_bitmask()
    if matcher.is_error():
        raise InvalidFieldError(field, _short(f"cannot be held to: {_cause(matcher.get_error())}"))
    if not any(mask):
        raise InvalidFieldError(field, "allows no output at all")
    return matcher, mask


def _schemas_of(source: GrammarSource) -> abc.Iterable[object]:
    if source.kind is GrammarKind.JSON_SCHEMA:
        return [json.loads(source.text)]
    return schemas_in(source.text) if source.kind is GrammarKind.LARK else []


def _library_form(source: GrammarSource) -> str:
    match source.kind:
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(source.text)
        case GrammarKind.LARK:
            for schema in _schemas_of(source):
                require_narrow(schema, source.field)
            return LLMatcher.grammar_from_lark(source.text)
        case GrammarKind.JSON_SCHEMA:
            return _from_schema(NamedSchema(source.field, source.text))


def _from_schema(named: NamedSchema) -> str:
    try:
        schema = json.loads(named.text)
        if not isinstance(schema, dict):
            raise InvalidFieldError(named.field, "must be a JSON object")
        require_known_options(schema, named.field)
        require_narrow(schema, named.field)
        return LLMatcher.grammar_from_json_schema(
            named.text,
            defaults={
                "whitespace_flexible": False,
                "item_separator": ITEM_SEPARATOR,
                "key_separator": KEY_SEPARATOR,
            },
        )
    except (ValueError, RecursionError) as error:
        raise InvalidFieldError(named.field, _short(f"is no JSON: {error}")) from error


def _cause(error: str) -> str:
    """What the library says of the cause, without its state and the names of control tokens."""
    words = _BEHIND_CAUSE.sub("", error)
    return "allows no output at all, or only says that it is itself" if words == "NoExtensionBias" else words


def _short(problem: str) -> str:
    return " ".join(problem.split())[:MAX_PROBLEM_CHARACTERS]
