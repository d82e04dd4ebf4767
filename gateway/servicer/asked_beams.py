"""A beam search as it is asked for, and what cannot be asked for beside it."""

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.engine_client import BeamSearch
from gateway.servicer.ask import ChatPrompt, GenerationAsk
from gateway.servicer.check import Check

MIN_BEAMS = 2
MAX_BEAMS = 16
MAX_LENGTH_PENALTY = 10.0
DEFAULT_LENGTH_PENALTY = 1.0


def beam_search_from_pb(options: pb.BeamSearchOptions, check: Check) -> BeamSearch:
    """The search, its defaults filled in."""
    width = check.at("width").within(options.width, MIN_BEAMS, MAX_BEAMS)
    num_returned = options.num_returned if options.HasField("num_returned") else 1
    penalty = options.length_penalty if options.HasField("length_penalty") else DEFAULT_LENGTH_PENALTY
    return BeamSearch(
        width=width,
        num_returned=check.at("num_returned").within(num_returned, 1, max(1, min(width, MAX_BEAMS))),
        length_penalty=check.at("length_penalty").within(penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY),
        ends_early=options.early_stopping,
    )


def require_searchable(ask: GenerationAsk, check: Check) -> None:
    """Nothing says how to draw, since a search takes the likeliest, or what the engine cannot do beside one."""
    sampling, output = ask.sampling, ask.output
    neutral = {"temperature": (sampling.temperature, 0), "top_k": (sampling.top_k, 0)}
    neutral |= {"top_p": (sampling.top_p, 1), "min_p": (sampling.min_p, 0)}
    for name, (given, left) in neutral.items():
        text = f"must be {left} or unset beside a beam search, which draws nothing"
        check.at(f"sampling.{name}").require(given == left, text)
    check.at("output.format").require(output.grammar is None, "cannot be asked for beside a beam search")
    is_scored = output.num_prompt_logprobs is not None
    check.at("output.prompt_logprobs").require(not is_scored, "the prompt is not scored beside a beam search")
    if isinstance(ask.prompt, ChatPrompt):
        _require_free(ask.prompt, check.at("chat"))


def _require_free(prompt: ChatPrompt, check: Check) -> None:
    """No call is forced, and none is held to its schema: that takes a grammar."""
    check.at("tool_choice").require(not prompt.required_tools, "no tool can be required beside a beam search")
    is_strict = any(tool.is_strict for tool in prompt.offered_tools)
    check.at("tools").require(not is_strict, "no tool can be strict beside a beam search")
