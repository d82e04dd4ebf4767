"""What tokens a request lets the engine draw: tokens that it names, and what its output has to be. Pure."""

from collections import abc

from gateway.engine_client import Grammar, GrammarKind, ModelInfo
from gateway.errors import FieldViolation, InvalidFieldError
from gateway.servicer.ask import ChatPrompt, GenerationAsk
from gateway.tokenizer import Tokenizer
from gateway.tokenizer.tools.grammar import CallGrammar


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
    required = prompt.required_tools
    is_single = prompt.tool_choice.is_single or bool(prompt.tool_choice.name)
    calls = CallGrammar(tokenizer.tool_style, required or prompt.offered_tools, tokenizer.added_ids, is_single)
    if required:
        return Grammar(GrammarKind.LARK, calls.calls_only())
    if wanted is not None:
        return Grammar(GrammarKind.LARK, calls.calls_or_answer(wanted.text))
    is_strict = any(tool.is_strict for tool in prompt.offered_tools)
    return Grammar(GrammarKind.LARK, calls.free()) if is_strict else None
