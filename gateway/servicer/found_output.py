"""One output of a beam search, which comes whole when the search has ended. Pure.

The search knows no stop strings: here its outputs are cut at the first one. What lies behind it was computed for the
search, and is billed.
"""

from gateway.engine_client import BeamResult, TokenChunk
from gateway.engine_client import FinishReason as EngineReason
from gateway.servicer.outcome import Delta, FinishReason, Found
from gateway.servicer.watched_text import WatchedText
from gateway.tokenizer import OutputText


def found_output(chunk: TokenChunk, beam: BeamResult, text: OutputText | WatchedText, *, keeps_ids: bool) -> Delta:
    """All of it; `text` makes this output's and nothing else."""
    told = text.push(chunk.token_ids)
    return Delta(
        text=told.text if told.stopped else told.text + text.finish(),
        token_ids=chunk.token_ids[: told.num_tokens] if keeps_ids else (),
        logprobs=chunk.logprobs[: told.num_tokens],
        num_tokens=told.num_tokens,
        num_output_tokens=told.num_tokens,
        found=Found(beam.rank, beam.score, _finish_reason(beam.reason, is_cut=told.stopped)),
    )


def _finish_reason(reason: EngineReason, *, is_cut: bool) -> FinishReason:
    return FinishReason.STOP if is_cut or reason is EngineReason.STOP else FinishReason.LENGTH
