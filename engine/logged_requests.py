"""Requests, and what a search has found, as a line of the decision log has them.

No text, and no tokens that text could be guessed from.
"""

import hashlib
from collections import abc
from dataclasses import asdict
from typing import Any

from engine.core.plan import StepOutput
from engine.core.types import Request

DIGEST_BYTES = 8

Json = dict[str, Any]  # any JSON object


def request_to_json(request: Request) -> Json:
    """The request without its tokens; what has its usual value is left out."""
    line: Json = {
        "id": request.generation_id,
        "path": [[node.id, node.weight] for node in request.path],
        "prompt": len(request.prompt_token_ids),
        "output": request.max_output_tokens,
        "arrived_at": request.arrived_at,
        "priority_class": asdict(request.priority_class),
    }
    optional = ("deadline", "queue_deadline", "granted_output_tokens")
    line |= {name: getattr(request, name) for name in optional if getattr(request, name) is not None}
    if request.stop_token_ids or request.sampling.constraint is not None:
        line["stops"] = True
    line |= {} if request.speculates else {"speculates": False}
    line |= {} if request.beam_search is None else {"beam_search": asdict(request.beam_search)}
    if request.sampling.num_prompt_logprobs is not None:  # it computes what others would find in the cache
        line["scored"] = True
    if request.policy_revision:
        line["policy_revision"] = request.policy_revision
    if request.cache_salt:  # that two are equal is all that matters
        line["salt"] = hashlib.blake2b(request.cache_salt, digest_size=DIGEST_BYTES).hexdigest()
    return line


def candidates_to_json(
    output: StepOutput, blocks: abc.Mapping[int, object], stops_of: abc.Callable[[int], abc.Set[int]]
) -> dict[int, Json]:
    """By row, of the candidates how likely each is, which of them end the output, and what blocks they fill."""
    told: dict[int, Json] = {}
    for row, candidates in output.candidates.items():
        stops = stops_of(row)
        ends = [nth for nth, each in enumerate(candidates) if each.token_id in stops]
        told[row] = {"logprobs": [each.logprob for each in candidates]} | ({"stops": ends} if ends else {})
        told[row] |= {"blocks": blocks[row]} if row in blocks else {}
    return told
