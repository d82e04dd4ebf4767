"""How requests end, and what is told of them."""

from engine.core.events import Admitted, Finished, Timings, TokensEmitted, Usage
from engine.core.plan import TokenLogprobs
from engine.core.types import FinishReason, Nanos, Request, SamplingParams, SequenceKey
from tests.builders import STEP_NS, Driver, make_request, make_scheduler
from tests.fakes import expected_output

KEY = SequenceKey("g", 0)
ALL_FREE = 64


def test_the_events_of_one_request():
    driver = Driver(make_scheduler())
    request = make_request("g", prompt=4, max_output_tokens=2, arrived_at=Nanos(-7))
    driver.add(request)
    driver.run()

    first, second = expected_output(request)
    assert driver.events == [
        Admitted(KEY, Nanos(7)),
        TokensEmitted(KEY, (first,)),
        TokensEmitted(KEY, (second,)),
        Finished(KEY, FinishReason.LENGTH, Usage(4, 0, 2, 0, 0), Timings(7, STEP_NS, STEP_NS, 0, 1, 1)),
    ]


def test_a_stop_token_ends_the_output_and_is_part_of_it():
    tokens = expected_output(make_request("g", prompt=[1, 2, 3], max_output_tokens=8, sampling=SamplingParams(seed=3)))
    stop = tokens[2]
    driver = Driver(make_scheduler())
    driver.add(
        make_request(
            "g",
            prompt=[1, 2, 3],
            max_output_tokens=8,
            sampling=SamplingParams(seed=3),
            stop_token_ids=frozenset({stop}),
        )
    )
    driver.run()

    assert driver.output("g") == tokens[: tokens.index(stop) + 1]
    assert driver.finished("g").reason is FinishReason.STOP


def test_a_stop_token_in_the_last_place_is_a_stop():
    request = make_request("g", prompt=4, max_output_tokens=1)
    driver = Driver(make_scheduler())
    driver.add(
        Request(
            generation_id="g",
            path=request.path,
            prompt_token_ids=request.prompt_token_ids,
            max_output_tokens=1,
            arrived_at=request.arrived_at,
            sampling=request.sampling,
            stop_token_ids=frozenset(expected_output(request)),
        )
    )
    driver.run()

    assert driver.finished("g").reason is FinishReason.STOP


def test_logprobs_travel_with_their_tokens():
    driver = Driver(make_scheduler())
    driver.add(make_request("g", max_output_tokens=1, sampling=SamplingParams(num_logprobs=1)))
    driver.run()

    (emitted,) = [event for event in driver.events if isinstance(event, TokensEmitted)]
    assert emitted.logprobs == (TokenLogprobs(-0.5, ((emitted.token_ids[0], -0.5),)),)


def test_an_error_ends_one_sequence_only():
    driver = Driver(make_scheduler())
    driver.add(bad := make_request("bad", prompt=4), good := make_request("good", prompt=4))
    driver.step()
    driver.runner.errors["bad"] = "numbers went wrong"
    driver.run()

    assert driver.finished("bad").reason is FinishReason.ERROR
    assert driver.finished("bad").error == "numbers went wrong"
    assert driver.output("bad") == expected_output(bad)[:1]
    assert driver.output("good") == expected_output(good)
    assert driver.finished("good").error is None


def test_an_error_in_the_middle_of_a_prompt_ends_the_sequence():
    driver = Driver(make_scheduler(max_num_batched_tokens=4))
    driver.add(make_request("bad", prompt=12))
    driver.runner.errors["bad"] = "numbers went wrong"
    driver.step()

    assert driver.finished("bad").usage == Usage(4, 0, 0, 0, 0)
    assert driver.scheduler.stats().num_free_blocks == ALL_FREE


def test_when_the_runner_fails_every_request_ends_once_and_everything_is_free():
    driver = Driver(make_scheduler(max_num_seqs=1))
    driver.add(make_request("running"), make_request("waiting"), make_request("held", granted_output_tokens=0))
    driver.step()
    driver.plan()

    events = driver.scheduler.fail_all("the device is gone", driver.now)

    ends = [event for event in events if isinstance(event, Finished)]
    assert [(end.key.generation_id, end.reason, end.error) for end in ends] == [
        (name, FinishReason.ERROR, "the device is gone") for name in ("running", "waiting", "held")
    ]
    assert not driver.scheduler.has_unfinished
    assert driver.scheduler.stats().num_free_blocks == ALL_FREE
    assert driver.plan() is None


def test_the_scheduler_serves_on_after_the_runner_failed():
    driver = Driver(make_scheduler())
    driver.add(make_request("lost"))
    driver.step()
    driver.plan()
    driver.scheduler.fail_all("the device is gone", driver.now)
    driver.add(request := make_request("next"))
    driver.run()

    assert driver.output("next") == expected_output(request)


class TestAbort:
    """A request may be aborted in each state, and ends at once and once."""

    def test_waiting(self):
        driver = Driver(make_scheduler(max_num_seqs=1))
        driver.add(make_request("running", prompt=4, max_output_tokens=2), make_request("g"))
        driver.step()

        assert [type(event) for event in driver.abort("g")] == [Finished]
        driver.run()
        assert driver.finished("g").usage == Usage(0, 0, 0, 0, 0)

    def test_running_between_steps(self):
        driver = Driver(make_scheduler())
        driver.add(make_request("g", prompt=4))
        driver.step()

        assert [type(event) for event in driver.abort("g")] == [Finished]
        assert driver.scheduler.stats().num_free_blocks == ALL_FREE
        assert driver.plan() is None

    def test_in_the_open_plan(self):
        driver = Driver(make_scheduler())
        driver.add(make_request("g", prompt=8), make_request("other", prompt=4))
        plan = driver.plan()

        events = driver.abort("g")
        assert [type(event) for event in events] == [Admitted, Admitted, Finished]
        assert driver.scheduler.stats().num_free_blocks == ALL_FREE - 3  # the runner may still write there

        driver.commit(plan)
        assert driver.output("g") == []
        assert driver.scheduler.stats().num_free_blocks == ALL_FREE - 1
        driver.run()
        assert driver.finished("g").reason is FinishReason.CANCELLED

    def test_prefilling_without_a_chunk_in_the_open_plan(self):
        driver = Driver(make_scheduler(max_num_seqs=3, max_num_batched_tokens=3))
        driver.add(make_request("decoding", prompt=1), make_request("first", prompt=9), make_request("g", prompt=9))
        driver.step()
        driver.step()
        driver.plan()

        driver.abort("g")
        assert "g" not in driver.scheduler.lifecycle.by_generation

    def test_twice(self):
        driver = Driver(make_scheduler())
        driver.add(make_request("g"))

        driver.abort("g")
        assert driver.abort("g") == []

    def test_the_id_may_be_used_again_while_the_plan_is_open(self):
        driver = Driver(make_scheduler())
        driver.add(make_request("g", prompt=4))
        plan = driver.plan()
        driver.abort("g")
        driver.add(again := make_request("g", prompt=6))
        driver.commit(plan)
        driver.run()

        assert driver.output("g") == expected_output(again)

    def test_the_reason_is_the_callers(self):
        driver = Driver(make_scheduler())
        driver.add(make_request("g"))

        driver.abort("g", FinishReason.STOP)

        assert driver.finished("g").reason is FinishReason.STOP


class TestExpiry:
    """Deadlines end requests wherever they are, and late ones are never computed."""

    def test_a_request_that_waits_beyond_its_queue_deadline_is_never_computed(self):
        driver = Driver(make_scheduler(max_num_seqs=1))
        driver.add(make_request("running", max_output_tokens=9))
        driver.add(make_request("late", queue_deadline=Nanos(3 * STEP_NS)))
        driver.run()

        assert driver.finished("late").reason is FinishReason.QUEUE_TIMEOUT
        assert driver.finished("late").timings == Timings(3 * STEP_NS, 0, 0, 0, 0, 0)
        assert "late" not in {start.key.generation_id for plan in driver.plans for start in plan.started}

    def test_the_queue_deadline_no_longer_counts_once_the_request_was_started(self):
        driver = Driver(make_scheduler())
        driver.add(make_request("g", max_output_tokens=5, queue_deadline=Nanos(1)))
        driver.run()

        assert driver.finished("g").reason is FinishReason.LENGTH

    def test_a_running_request_ends_at_its_deadline(self):
        driver = Driver(make_scheduler())
        driver.add(make_request("g", prompt=4, max_output_tokens=50, deadline=Nanos(3 * STEP_NS)))
        driver.run()

        assert driver.finished("g").reason is FinishReason.DEADLINE
        assert driver.finished("g").usage.num_output_tokens == 3
        assert driver.scheduler.stats().num_free_blocks == ALL_FREE

    def test_a_deadline_that_passes_while_the_plan_is_open_discards_its_output(self):
        driver = Driver(make_scheduler())
        driver.add(make_request("g", prompt=4, deadline=Nanos(5)))
        plan = driver.plan()
        ended = driver.scheduler.expire(Nanos(5))
        driver.commit(plan)

        assert [type(event) for event in ended] == [Admitted, Finished]
        assert driver.output("g") == []

    def test_a_held_request_expires_too(self):
        driver = Driver(make_scheduler())
        driver.add(make_request("g", granted_output_tokens=0, deadline=Nanos(5), queue_deadline=Nanos(9)))

        assert driver.scheduler.next_expiry() == 5
        driver.now = Nanos(5)
        driver.plan()
        assert driver.finished("g").reason is FinishReason.DEADLINE

    def test_the_next_expiry_is_the_earliest_of_the_unfinished(self):
        driver = Driver(make_scheduler())
        assert driver.scheduler.next_expiry() is None
        driver.add(
            make_request("a", deadline=Nanos(70)), make_request("b", deadline=Nanos(90), queue_deadline=Nanos(50))
        )
        assert driver.scheduler.next_expiry() == 50

        driver.abort("b")
        assert driver.scheduler.next_expiry() == 70
        driver.abort("a")
        assert driver.scheduler.next_expiry() is None
