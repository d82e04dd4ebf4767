"""What tokens a request lets the engine draw: tokens that it names, and what its output has to be. Pure."""

from collections import abc

from gateway.engine_client import Grammar, GrammarKind, ModelInfo, NamedSchema
from gateway.errors import FieldViolation, InvalidFieldError
from gateway.servicer.ask import ChatPrompt, GenerationAsk
from gateway.tokenizer import Tokenizer
from gateway.tokenizer.tools import Tool
from gateway.tokenizer.tools.grammar import CallGrammar

TOOLS_FIELD = "chat.tools"


def check_tokens(ask: GenerationAsk, info: ModelInfo) -> None:
    """Raises InvalidFieldError for a token that the model does not have."""
    named: dict[str, abc.Iterable[int]] = {
        "spec.stopping.stop_token_ids": ask.stopping.stop_token_ids,
        "spec.sampling.allowed_token_ids": ask.sampling.allowed_token_ids,
        "spec.sampling.logit_bias": (token_id for token_id, _ in ask.sampling.logit_biases),
    }
    for field, token_ids in named.items():
        if any(token_id >= info.vocabulary_size for token_id in token_ids):
            text = f"must be token ids of the model, each less than {info.vocabulary_size}"
            raise InvalidFieldError(FieldViolation(field, text))


def grammar_of(ask: GenerationAsk, tokenizer: Tokenizer) -> Grammar | None:
    """What the output is held to; None: nothing."""
    prompt, wanted = ask.prompt, ask.output.grammar
    if not isinstance(prompt, ChatPrompt) or not prompt.offered_tools:
        return wanted
    is_single = prompt.tool_choice.is_single or bool(prompt.tool_choice.name)
    held = prompt.required_tools or prompt.offered_tools
    calls, parts = CallGrammar(tokenizer.tool_style, held, tokenizer.added_ids, is_single), _schemas(prompt, held)
    if prompt.required_tools:
        return Grammar(GrammarKind.LARK, calls.calls_only(), parts, TOOLS_FIELD)
    if wanted is not None:
        answer = NamedSchema("sampling.grammar.json_schema", wanted.text)
        return Grammar(GrammarKind.LARK, calls.calls_or_answer(wanted.text), (answer, *parts), TOOLS_FIELD)
    is_strict = any(tool.is_strict for tool in held)
    return Grammar(GrammarKind.LARK, calls.free(), parts, TOOLS_FIELD) if is_strict else None


def _schemas(prompt: ChatPrompt, held: abc.Sequence[Tool]) -> tuple[NamedSchema, ...]:
    """Those of the tools in `held`, by the names that the caller knows them by."""
    names = {tool.name for tool in held}
    return tuple(
        NamedSchema(f"{TOOLS_FIELD}[{index}].parameters", tool.parameters)
        for index, tool in enumerate(prompt.tools)
        if tool.name in names and tool.parameters
    )
