"""Searches over a real socket: what is refused by its field's name, and one request to whoever looks at it."""

import pytest

from engine.core.types import BeamSearchParams, Nanos, PathNode, Request, SamplingParams
from evenflow.engine.v1 import engine_pb2 as pb
from tests.core.searching import expected_hypotheses
from tests.engine.fake_runner import CONFIG, FakeRunner
from tests.engine.wire import FINISHED_REASON, cancel, generate, refusal, start, until_blocks_are_free
from tests.fakes import ReferenceRunner

GREEDY = {"temperature": 0.0, "top_p": 1.0, "repetition_penalty": 1.0, "seed": 3}


class SearchedRunner(FakeRunner):
    """Holds steps as the other one does; its tokens are those of a ReferenceRunner."""

    def __init__(self) -> None:
        super().__init__()
        self.reference = ReferenceRunner(CONFIG.block_size)

    def execute(self, plan):
        super().execute(plan)
        return self.reference.execute(plan)


@pytest.fixture
def runner():
    return SearchedRunner()


def search(generation_id="s", *, width=3, num_returned=2, length_penalty=1.0, early_stopping=False, **fields):
    asked = pb.BeamSearch(
        width=width, num_returned=num_returned, length_penalty=length_penalty, early_stopping=early_stopping
    )
    sampling = GREEDY | fields.pop("sampling", {})
    return start(generation_id, sampling=sampling, beam_search=asked, **({"max_output_tokens": 6} | fields))


def expected(*, width=3, num_returned=2, stop_token_ids=(), max_output_tokens=6):
    request = Request(
        generation_id="s",
        path=(PathNode("a", 1.0),),
        prompt_token_ids=(5, 6, 7),
        max_output_tokens=max_output_tokens,
        arrived_at=Nanos(0),
        sampling=SamplingParams(temperature=0.0, seed=3),
        stop_token_ids=frozenset(stop_token_ids),
        beam_search=BeamSearchParams(width, num_returned),
    )
    return expected_hypotheses(request)


@pytest.mark.parametrize("stop_token_ids", [(), tuple(range(30))])
async def test_hypotheses_come_whole_the_best_first_and_then_the_end(stub, stop_token_ids):
    answer = await generate(stub, search(sampling={"stop_token_ids": stop_token_ids})).to_end()
    assert answer.kinds == ["accepted", "admitted", "token_chunk", "token_chunk", "finished"]
    chunks = [message.token_chunk for message in answer.messages[2:-1]]
    assert [chunk.index for chunk in chunks] == [0, 1]
    for chunk, (score, token_ids, reason) in zip(chunks, expected(stop_token_ids=stop_token_ids), strict=True):
        assert tuple(chunk.token_ids) == token_ids
        assert chunk.beam.score == pytest.approx(score)
        assert chunk.beam.cumulative_logprob == pytest.approx(score * len(token_ids))
        assert FINISHED_REASON[chunk.beam.reason] == reason.upper()
        assert not chunk.logprobs
    assert answer.finished.reason == chunks[0].beam.reason
    assert answer.finished.usage.prompt_tokens == 3


async def test_usage_is_one_token_for_each_beam_and_step(stub):
    answer = await generate(stub, search(width=4, num_returned=1)).to_end()
    assert answer.finished.usage.output_tokens == 1 + 4 * 5
    assert answer.finished.timings.num_decode_steps == 5


async def test_log_probabilities_come_with_each_token(stub):
    answer = await generate(stub, search(sampling={"num_logprobs": 2})).to_end()
    for message in answer.messages[2:-1]:
        told = message.token_chunk.logprobs
        assert len(told) == len(message.token_chunk.token_ids)
        assert sum(entry.logprob for entry in told) == pytest.approx(message.token_chunk.beam.cumulative_logprob)
        assert all(len(entry.top_token_ids) == 2 for entry in told)


async def test_search_that_is_cancelled_has_found_nothing(stub, runner):
    runner.hold()
    runner.allow(3)
    answer = generate(stub, search(max_output_tokens=60))
    await answer.until("admitted")
    answer.write(cancel())
    await runner.step_until(answer.to_end())
    assert answer.reason == "CANCELLED"
    assert "token_chunk" not in answer.kinds
    await runner.step_until(until_blocks_are_free(stub))


async def test_search_is_one_request_in_the_list(stub, runner):
    runner.hold()
    answer = generate(stub, search(width=4, max_output_tokens=50))
    runner.allow(4)
    await answer.until("admitted")
    listed = await runner.step_until(stub.ListRequests(pb.ListRequestsRequest()))
    (told,) = listed.requests
    assert (told.generation_id, told.max_output_tokens) == ("s", 200)
    explained = await runner.step_until(stub.ExplainRequest(pb.ExplainRequestRequest(generation_id="s")))
    assert explained.request.generation_id == "s"
    answer.write(cancel())
    await runner.step_until(answer.to_end())


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"width": 1, "num_returned": 1}, "beam_search.width"),
        ({"width": 17}, "beam_search.width"),
        ({"num_returned": 0}, "beam_search.num_returned"),
        ({"num_returned": 4}, "beam_search.num_returned"),
        ({"length_penalty": 10.5}, "beam_search.length_penalty"),
        ({"length_penalty": float("nan")}, "beam_search.length_penalty"),
        ({"sampling": {"temperature": 0.7}}, "beam_search"),
        ({"sampling": {"top_k": 5}}, "beam_search"),
        ({"sampling": {"top_p": 0.9}}, "beam_search"),
        ({"sampling": {"min_p": 0.1}}, "beam_search"),
        ({"sampling": {"grammar": pb.Grammar(regex="a")}}, "sampling.grammar"),
        ({"sampling": {"num_prompt_logprobs": 1}}, "sampling.num_prompt_logprobs"),
    ],
)
async def test_what_a_search_cannot_do_is_refused_by_its_name(stub, fields, field):
    code, reason, metadata, _ = await refusal(generate(stub, search(**fields)))
    assert (code, reason, metadata["field"]) == ("INVALID_ARGUMENT", "INVALID_FIELD", field)


async def test_beams_that_can_never_fit_together_are_refused(stub):
    tokens = CONFIG.num_device_blocks * CONFIG.block_size // 4
    assert (await generate(stub, search(width=4, max_output_tokens=tokens - 3)).to_end()).reason == "LENGTH"
    code, reason, metadata, text = await refusal(generate(stub, search(width=5, max_output_tokens=tokens - 3)))
    assert (code, reason) == ("INVALID_ARGUMENT", "EXCEEDS_KV_POOL")
    assert metadata["max_tokens"] == str(CONFIG.num_device_blocks * CONFIG.block_size)
    assert "5 beams" in text
