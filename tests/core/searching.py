"""Beam search once more, the plain way: every token of every beam is ranked in every round."""

import math

from engine.core.events import BeamFound
from engine.core.types import BeamSearchParams, Request, SamplingParams
from engine.sim.reference_runner import likeliest, slot_after
from tests.builders import Driver, make_request


def make_search(generation_id: str | None = None, *, width: int = 3, num_returned: int = 1, **fields) -> Request:
    """A request that searches; `fields` are those of BeamSearchParams and of make_request."""
    penalty, early = fields.pop("length_penalty", 1.0), fields.pop("early_stopping", False)
    params = BeamSearchParams(width, num_returned, penalty, early)
    sampling = fields.pop("sampling", SamplingParams(temperature=0.0, seed=fields.pop("seed", 0)))
    return make_request(generation_id, sampling=sampling, beam_search=params, **fields)


def expected_hypotheses(request: Request) -> list[tuple[float, tuple[int, ...], str]]:
    """(score, tokens, reason) of those that are returned, the best first, of a search that nothing disturbs."""
    params, size = request.beam_search, request.max_output_tokens
    prompt = b""
    for token_id in request.prompt_token_ids:
        prompt = slot_after(prompt, token_id)
    beams = [(0.0, (), prompt)]
    finished: list[tuple[float, tuple[int, ...], str]] = []
    for length in range(1, size + 1):
        ranked = sorted(
            (
                (total + each.logprob, (*tokens, each.token_id), slot)
                for total, tokens, slot in beams
                for each in likeliest(slot, request.sampling.seed)
            ),
            key=lambda one: -one[0],
        )
        for total, tokens, _ in ranked[: params.width]:
            is_stop = tokens[-1] in request.stop_token_ids
            if is_stop or length == size:
                finished.append((total / length**params.length_penalty, tokens, "stop" if is_stop else "length"))
        finished = sorted(finished, key=lambda one: -one[0])[: params.width]
        going_on = [one for one in ranked if one[1][-1] not in request.stop_token_ids][: params.width]
        beams = [(total, tokens, slot_after(slot, tokens[-1])) for total, tokens, slot in going_on]
        is_full = len(finished) == params.width
        if is_full and (params.early_stopping or beams[0][0] / length**params.length_penalty <= finished[-1][0]):
            break
    return finished[: params.num_returned]


def found(driver: Driver, generation_id: str) -> list[tuple[float, tuple[int, ...], str]]:
    """What the driver's scheduler has found for a request, in the order in which it was told."""
    events = [e for e in driver.events if isinstance(e, BeamFound) and e.key.generation_id == generation_id]
    assert [event.rank for event in events] == list(range(len(events)))
    return [(e.hypothesis.score, e.hypothesis.token_ids, e.hypothesis.reason.value) for e in events]


def assert_found(driver: Driver, request: Request) -> None:
    """The search of `request` has come to what it comes to undisturbed, and says why its best output ended."""
    actual, expected = found(driver, request.generation_id), expected_hypotheses(request)
    assert [one[1:] for one in actual] == [one[1:] for one in expected]
    assert all(math.isclose(one[0], other[0], rel_tol=1e-12) for one, other in zip(actual, expected, strict=True))
    end = driver.finished(request.generation_id)
    assert end.reason.value == expected[0][2]
    events = [event for event in driver.events if event.key.generation_id == request.generation_id]
    assert events[-1] is end
