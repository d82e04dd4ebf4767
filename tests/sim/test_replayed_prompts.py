"""Prompts that part within a block: a log tells where, and nothing of what they say, and a replay finds the same."""

import io
import json
import random

import pytest

from engine import logged_blocks
from engine.core.types import FinishReason, Nanos
from engine.sim.errors import ReplayError
from engine.sim.made_prompts import MadePrompts
from engine.sim.replay import replay
from tests.builders import make_request
from tests.fakes import ReferenceRunner, expected_output
from tests.sim.test_decision_log import calls, recorded, run_steps

LIMITS = {"block_size": 4, "num_device_blocks": 30, "num_host_blocks": 12, "enable_prefix_caching": True}


def log_of_traffic(seed: int, num_steps: int = 150) -> tuple[list[str], int]:
    """The log of prompts over three tokens that part anywhere, some of them turns of a conversation, in a small pool;
    and how many blocks were copied."""
    source, file, num_copied = random.Random(seed), io.StringIO(), 0
    scheduler, _ = recorded(file, source.choice(["fcfs", "fair"]), growth_reserve_tokens=0, max_num_seqs=4, **LIMITS)
    runner, requests = ReferenceRunner(4), []
    for step in range(num_steps):
        now = 100 * step
        if source.random() < 0.4:
            beginning = list(range(20))
            if requests and source.random() < 0.3:
                last = source.choice(requests)
                beginning = [*last.prompt_token_ids, *expected_output(last)][:30]
            text = [*beginning[: source.randrange(1, 30)], *[source.randrange(3) for _ in range(source.randrange(6))]]
            request = make_request(
                f"g{step}",
                tenant=source.choice("ab"),
                prompt=text,
                max_output_tokens=source.randrange(1, 9),
                cache_salt=source.choice([b"", b"one"]),
            )
            requests.append(request)
            scheduler.add(request, Nanos(now))
        if requests and source.random() < 0.05:
            scheduler.abort(source.choice(requests).generation_id, FinishReason.CANCELLED, Nanos(now))
        plan = scheduler.plan(Nanos(now + 1))
        if plan is not None:
            num_copied += len(plan.block_copies)
            scheduler.commit(runner.execute(plan), Nanos(now + 50))
    return file.getvalue().splitlines(), num_copied


@pytest.mark.parametrize("remembered", [4_096, 0])
@pytest.mark.parametrize("seed", range(3))
def test_a_replay_copies_the_same_blocks(seed: int, remembered: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logged_blocks, "MIN_REMEMBERED", remembered)

    lines, num_copied = log_of_traffic(seed)

    report = replay(lines)
    assert report.is_identical, report.difference
    assert num_copied > 10


def test_samples_of_one_prompt_are_told_by_one_number():
    file = io.StringIO()
    scheduler, _ = recorded(file, **LIMITS)
    for name in "abc":
        scheduler.add(make_request(name, prompt=range(60, 70)), Nanos(0))
    run_steps(scheduler, 20)

    requests = [line["request"] for line in calls(file, "add")]
    assert len({request["end"] for request in requests}) == 1
    assert not any("common" in request for request in requests)
    assert replay(file.getvalue().splitlines()).is_identical
    assert scheduler.stats().totals.num_found_tokens == 18


def test_where_prompts_part_is_told_and_no_token_of_them():
    file = io.StringIO()
    scheduler, _ = recorded(file, **LIMITS)
    for name, prompt in (("a", [61, 62, 63, 64, 65]), ("b", [61, 62, 67, 68, 69, 71]), ("c", [61, 62, 67])):
        scheduler.add(make_request(name, prompt=prompt), Nanos(0))

    first, second, third = [line["request"] for line in calls(file, "add")]
    assert "common" not in first
    assert second["common"] == [[0, 2, first["blocks"][0], 1]]
    assert third["common"] == [[0, 3, second["blocks"][0], 0]]
    numbers = [*first["blocks"], first["end"], *second["blocks"], second["end"], third["end"]]
    assert all(number > 1_000 for number in numbers)


class TestMadePrompts:
    def test_have_in_common_what_the_lines_say(self):
        prompts = MadePrompts(4)
        _, first = prompts.make({"prompt": 6, "blocks": [7], "end": 8})
        _, second = prompts.make({"prompt": 4, "blocks": [9], "common": [[0, 2, 7, 1]]})
        _, third = prompts.make({"prompt": 3, "end": 10, "common": [[0, 3, 9, 0]]})

        assert first[:2] == second[:2]
        assert first[2] != second[2]
        assert second[:3] == third
        assert prompts.make({"prompt": 6, "blocks": [7], "end": 8}) == ((0, 0, 0, 9, 0, 0), first)

    @pytest.mark.parametrize(
        ("request_line", "problem"),
        [
            ('"prompt":8,"blocks":[1],"end":3', "has no 1 full blocks"),
            ('"prompt":9,"blocks":[1],"end":3', "has no 1 full blocks"),
            ('"prompt":10000000000,"end":3', "has no 0 full blocks"),
            ('"prompt":3,"end":3,"common":[[0,1,5,0]]', "5 is missing or unknown"),
            ('"prompt":6,"blocks":[1],"end":3,"common":[[1,3,1,0]]', "has no 3 tokens in common"),
            ('"prompt":3,"end":-3', "end: "),
            ('"prompt":3,"common":[[0,1]]', "common"),
        ],
    )
    def test_of_numbers_that_make_no_sense_are_refused(self, request_line: str, problem: str):
        file = io.StringIO()
        scheduler, _ = recorded(file, **LIMITS)
        scheduler.add(make_request("g", prompt=3), Nanos(0))
        header, line = file.getvalue().splitlines()
        request = json.loads(line)["request"]
        del request["prompt"], request["end"]
        changed = json.dumps(request)[:-1] + "," + request_line + "}"

        with pytest.raises(ReplayError, match=f"line 2: .*{problem}"):
            replay([header, '{"t":0,"e":"add","request":' + changed + "}"])
