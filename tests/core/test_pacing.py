"""How much of a prompt a step computes beside others' decodes, once it is known what steps cost."""

import pytest

from engine.core.costs import Prices, StepCosts
from engine.core.pacing import MIN_CHUNK, Pacing, tokens_within
from engine.core.policy import Terms
from engine.core.step import Step
from engine.core.types import FinishReason, Nanos
from tests.builders import Driver, make_config, make_request
from tests.core.scripted import Scripted, make_driver, seq_of

MS = 1_000_000
BUDGET = 64
SHARED = 48  # prompt tokens of a step that several flows want
LONGEST_SHORT = 16  # prompt that others are held up for
COSTS = StepCosts(base_ns=0.0, prefill_token_ns=MS, decode_ns=MS)  # a decode takes as long as a prompt token


def driver_with(*decoding: str, paces_prefill: bool = True, are_measured: bool = True, **fields: object) -> Driver:
    """A request of each of these tenants decodes; a millisecond each, in each step."""
    policy = Scripted(paces_prefill=paces_prefill)
    driver = make_driver(policy, num_device_blocks=512, max_num_batched_tokens=BUDGET, **fields)
    for tenant in decoding:
        driver.add(make_request(tenant=tenant, prompt=1, max_output_tokens=500))
        driver.step()
    driver.scheduler.calibrate(Prices(COSTS, are_measured=are_measured), driver.now)
    return driver


def prompt_chunks(driver: Driver, num_steps: int, *, tenant: str = "p", weight: float = 1.0) -> list[int]:
    """Tokens of a long prompt that each of the next steps computes."""
    driver.add(make_request("prompt", tenant=tenant, prompt=900, max_output_tokens=1, weight=weight))
    steps = [driver.chunks() for _ in range(num_steps)]
    return [sum(num_tokens for name, _, num_tokens in chunks if name == "prompt") for chunks in steps]


class TestPaced:
    def test_beside_anothers_decodes_a_prompt_takes_its_share_of_the_time(self):
        chunks = prompt_chunks(driver_with("d"), 100)

        assert sum(chunks) == pytest.approx(100, abs=MIN_CHUNK)
        assert {0, MIN_CHUNK} == set(chunks)

    @pytest.mark.parametrize("weight", [0.5, 2.0, 4.0])
    def test_its_weight_says_how_large_that_is(self, weight: float):
        chunks = prompt_chunks(driver_with("d"), 100, weight=weight)

        assert sum(chunks) == pytest.approx(100 * weight, abs=MIN_CHUNK)

    def test_the_share_is_one_against_all_that_decode(self):
        chunks = prompt_chunks(driver_with("d", "e"), 100)

        assert sum(chunks) == pytest.approx(100, abs=MIN_CHUNK)  # two decodes a step, half of them

    def test_what_is_not_used_adds_up_to_one_step(self):
        driver = driver_with("d")
        prompt_chunks(driver, 2)
        driver.scheduler.set_reader_blocked("prompt", blocked=True, now=driver.now)
        for _ in range(200):
            driver.step()
        driver.scheduler.set_reader_blocked("prompt", blocked=False, now=driver.now)
        chunks = [num_tokens for _ in range(4) for name, _, num_tokens in driver.chunks() if name == "prompt"]

        assert chunks == [SHARED, BUDGET + 1 - SHARED]

    def test_the_end_of_a_prompt_may_be_smaller_than_other_chunks(self):
        driver = driver_with("d")
        driver.add(make_request("prompt", tenant="p", prompt=BUDGET + 2, max_output_tokens=1))
        for _ in range(BUDGET + 4):
            driver.step()

        assert driver.finished("prompt").reason is FinishReason.LENGTH

    @pytest.mark.parametrize(
        ("budget", "key_ms", "prompt"),
        [
            pytest.param(64, 0.1, 400, id="the least chunk takes longer than all the tokens of a step"),
            pytest.param(4, 0.5, 50, id="one token does"),
        ],
    )
    def test_however_deep_it_is_it_gets_on(self, budget: int, key_ms: float, prompt: int):
        policy = Scripted(paces_prefill=True)
        driver = make_driver(policy, num_device_blocks=512, max_num_batched_tokens=budget, max_num_seqs=4)
        driver.add(make_request(tenant="d", prompt=1, max_output_tokens=300))
        costs = StepCosts(base_ns=0.0, prefill_token_ns=MS, prefill_key_ns=key_ms * MS, decode_ns=50 * MS)
        driver.scheduler.calibrate(Prices(costs, are_measured=True), driver.now)
        driver.step()
        driver.add(make_request("prompt", tenant="p", prompt=prompt, max_output_tokens=1))
        for _ in range(200):
            driver.step()

        assert driver.finished("prompt").reason is FinishReason.LENGTH


class TestFree:
    def test_alone(self):
        assert prompt_chunks(driver_with(), 5) == [BUDGET] * 5

    def test_beside_its_own_tenants_decodes(self):
        assert prompt_chunks(driver_with("p"), 5) == [BUDGET - 1] * 5

    def test_once_the_others_have_ended(self):
        driver = driver_with("d")
        prompt_chunks(driver, 3)
        for seq in list(driver.scheduler.lifecycle.running):
            if seq.key.generation_id != "prompt":
                driver.abort(seq.key.generation_id)

        assert driver.chunks() == [("prompt", seq_of(driver, "prompt").num_computed_tokens - BUDGET, BUDGET)]

    def test_where_the_policy_does_not_pace(self):
        assert prompt_chunks(driver_with("d", paces_prefill=False), 5) == [BUDGET - 1] * 5

    def test_until_prices_are_measured(self):
        assert prompt_chunks(driver_with("d", are_measured=False), 5) == [BUDGET - 1] * 5

    def test_beside_decodes_of_those_that_yield(self):
        driver = driver_with("d")
        driver.scheduler.lifecycle.policy.policy.yielding = "d"

        assert prompt_chunks(driver, 5) == [SHARED] * 5


class TestShortPrompt:
    """One prompt, of a flow that has hardly anything, beside long ones that nobody's decodes pace."""

    SHORT = 12

    def driver(self, *, first: str = "s", num_steps: int = 1) -> Driver:
        """The long prompts of two tenants have run for so many steps."""
        driver = driver_with()
        driver.scheduler.lifecycle.policy.policy.first = first
        driver.add(*(make_request(tenant, tenant=tenant, prompt=900, max_output_tokens=1) for tenant in "pq"))
        for _ in range(num_steps):
            driver.step()
        return driver

    def serve(self, driver: Driver, tenant: str = "s", *, prompt: int = SHORT) -> dict[str, int]:
        """Tokens of each request in the step that follows the arrival of a short one."""
        driver.add(make_request(name := f"short-{driver.now}", tenant=tenant, prompt=prompt, max_output_tokens=1))
        chunks = {generation: num_tokens for generation, _, num_tokens in driver.chunks()}
        return {"short": chunks.pop(name, 0), "others": sum(chunks.values())}

    @pytest.mark.parametrize("prompt", [1, SHORT, LONGEST_SHORT])
    def test_has_its_step_for_itself(self, prompt: int):
        assert self.serve(self.driver(), prompt=prompt) == {"short": prompt, "others": 0}

    def test_comes_in_whole_behind_a_chunk_that_fills_the_step(self):
        assert self.serve(self.driver(first="p")) == {"short": self.SHORT, "others": SHARED}

    def test_every_other_step_is_as_long_as_without_them(self):
        driver = self.driver()
        others = [self.serve(driver)["others"] for _ in range(5)]

        assert others == [0, SHARED - self.SHORT] * 2 + [0]

    def test_one_token_more_is_not_short(self):
        served = self.serve(self.driver(), prompt=LONGEST_SHORT + 1)

        assert served == {"short": LONGEST_SHORT + 1, "others": SHARED - LONGEST_SHORT - 1}

    @pytest.mark.parametrize(("tenant", "num_tokens"), [("s", SHORT), ("p", SHARED)])
    def test_of_a_flow_above_half_its_share_of_the_pool_changes_nothing(self, tenant: str, num_tokens: int):
        driver = self.driver(first=tenant, num_steps=13)
        assert seq_of(driver, "p").num_device_blocks > 512 / 2 / 2

        assert sum(self.serve(driver, tenant).values()) == num_tokens

    def test_of_a_flow_that_yields_gets_what_is_left(self):
        driver = self.driver()
        driver.scheduler.lifecycle.policy.policy.yielding = "s"

        assert self.serve(driver) == {"short": 0, "others": SHARED}

    def test_leaves_nothing_to_those_that_yield(self):
        driver = self.driver()
        driver.scheduler.lifecycle.policy.policy.yielding = "pq"

        assert self.serve(driver) == {"short": self.SHORT, "others": 0}

    def test_makes_no_step_longer_than_its_target(self):
        pacing = Pacing(
            make_config(max_num_batched_tokens=BUDGET, target_step_ms=20.0), Prices(COSTS, are_measured=True)
        )
        driver = self.driver()
        driver.add(make_request("short", tenant="s", prompt=self.SHORT))
        step = Step(Nanos(0), BUDGET, Terms(paces_prefill=True), num_flows=2)
        pacing.begin(step)
        pacing.spend(seq_of(driver, "p"), 0, 15)
        pacing.make_way(seq_of(driver, "short"))

        assert pacing.limit(seq_of(driver, "short"), self.SHORT) == 5

    def test_many_of_them_make_no_longer_step_than_a_first_chunk(self):
        driver = self.driver(first="p", num_steps=8)
        costs = StepCosts(base_ns=0.0, prefill_token_ns=MS, prefill_key_ns=MS / 10)
        driver.scheduler.calibrate(Prices(costs, are_measured=True), driver.now)
        driver.add(*(make_request(tenant="s", prompt=self.SHORT, max_output_tokens=1) for _ in range(5)))
        chunks = driver.chunks()

        full_ns = costs.chunk_ns(0, BUDGET)
        longest_ns = costs.chunk_ns(0, self.SHORT)
        assert full_ns - longest_ns < sum(costs.chunk_ns(start, count) for _, start, count in chunks) <= full_ns

    @pytest.mark.parametrize("prompt", range(1, LONGEST_SHORT))
    @pytest.mark.parametrize("key_ns", [0.0, 7.3, 1_116.2])
    def test_is_never_cut_by_what_is_rounded(self, prompt: int, key_ns: float):
        costs = StepCosts(prefill_token_ns=1_130_039.2, prefill_key_ns=key_ns)
        pacing = Pacing(make_config(max_num_batched_tokens=BUDGET), Prices(costs, are_measured=True))
        driver = self.driver(num_steps=0)
        driver.add(make_request("short", tenant="s", prompt=prompt))
        pacing.begin(Step(Nanos(0), BUDGET, Terms(paces_prefill=True), num_flows=2))
        pacing.spend(seq_of(driver, "p"), 129, 41)
        pacing.make_way(seq_of(driver, "short"))

        assert pacing.limit(seq_of(driver, "short"), prompt) == prompt


class TestShortPromptBesideDecodes:
    """A prompt that comes while another tenant decodes and a third one has a long prompt."""

    SHORT = 12

    def driver(self, **fields: object) -> Driver:
        driver = driver_with("d", **fields)
        driver.scheduler.lifecycle.policy.policy.first = "s"
        driver.add(make_request("long", tenant="p", prompt=900, max_output_tokens=1))
        driver.step()
        return driver

    def serve(self, driver: Driver, name: str) -> int:
        """Tokens of a short prompt in the step behind its arrival."""
        driver.add(make_request(name, tenant="s", prompt=self.SHORT, max_output_tokens=1))
        return sum(num_tokens for generation, _, num_tokens in driver.chunks() if generation == name)

    def test_comes_in_whole_before_its_flow_has_saved_up_for_it(self):
        assert self.serve(self.driver(), "short") == self.SHORT

    def test_its_flow_owes_what_was_more_than_its_share(self):
        driver = self.driver()
        self.serve(driver, "first")
        waits = 0
        driver.add(make_request("second", tenant="s", prompt=self.SHORT, max_output_tokens=1))
        while not any(generation == "second" for generation, _, _ in driver.chunks()):
            waits += 1

        assert waits == self.SHORT - 1  # a decode's time each, with the step of the first prompt

    def test_many_of_them_take_their_share_of_the_time(self):
        driver = self.driver()
        driver.add(*(make_request(f"s{n}", tenant="s", prompt=self.SHORT, max_output_tokens=1) for n in range(40)))
        chunks = [driver.chunks() for _ in range(200)]
        num_tokens = sum(num for step in chunks for name, _, num in step if name.startswith("s"))

        assert num_tokens == pytest.approx(200, abs=self.SHORT)

    def test_one_that_has_to_wait_holds_nobody_up(self):
        driver = driver_with("p")  # whose long prompt only its own decodes are beside
        driver.scheduler.lifecycle.policy.policy.first = "s"
        driver.add(make_request("long", tenant="p", prompt=900, max_output_tokens=1))
        assert self.serve(driver, "first") == self.SHORT
        driver.add(make_request("second", tenant="s", prompt=self.SHORT, max_output_tokens=1))

        num_tokens = {name: num for name, _, num in driver.chunks()}
        assert num_tokens["long"] == SHARED
        assert "second" not in num_tokens


class TestTarget:
    def test_no_step_is_longer_while_chunks_can_be_made_smaller(self):
        driver = driver_with("d", paces_prefill=False, target_step_ms=30.0)

        assert prompt_chunks(driver, 3) == [29] * 3

    def test_a_small_chunk_is_always_computed(self):
        driver = driver_with("d", paces_prefill=False, target_step_ms=2.0)

        assert prompt_chunks(driver, 3) == [MIN_CHUNK] * 3

    def test_the_second_prompt_of_a_step_gets_what_is_left(self):
        pacing = Pacing(make_config(target_step_ms=20.0), Prices(COSTS))
        driver = driver_with()
        driver.add(make_request("a", prompt=15), make_request("b", prompt=15))
        step = Step(Nanos(0), BUDGET, Terms())
        pacing.begin(step)
        first, second = seq_of(driver, "a"), seq_of(driver, "b")
        assert pacing.limit(first, 15) == 15
        pacing.spend(first, 0, 15)

        assert pacing.limit(second, 15) == 5


@pytest.mark.parametrize("key_ns", [0.0, 1_000.0, 100_000.0])
@pytest.mark.parametrize("start", [0, 1, 1000])
@pytest.mark.parametrize("limit_ms", [-1.0, 0.0, 0.5, 7.0, 300.0])
def test_the_longest_chunk_within_a_limit_is_found(key_ns: float, start: int, limit_ms: float):
    costs = StepCosts(prefill_token_ns=MS, prefill_key_ns=key_ns)
    num_tokens = tokens_within(costs, start, 200, limit_ms * MS)

    assert num_tokens == max(n for n in range(201) if n == 0 or costs.chunk_ns(start, n) <= limit_ms * MS)


class TestDeadline:
    """A prompt of ten tokens takes ten milliseconds."""

    def finish(self, deadline_ms: float, *, are_measured: bool = True) -> FinishReason | None:
        driver = driver_with(are_measured=are_measured)
        driver.now = Nanos(5 * MS)
        driver.add(make_request("g", prompt=10, deadline=Nanos(int(deadline_ms * MS))))
        events = driver.abort("nobody")
        return events[0].reason if events else None

    def test_one_that_cannot_be_met_ends_the_request_at_once(self):
        assert self.finish(14.9) is FinishReason.DEADLINE

    def test_one_that_can_just_be_met_does_not(self):
        assert self.finish(15.0) is None

    def test_nothing_is_refused_until_prices_are_measured(self):
        assert self.finish(14.9, are_measured=False) is None

    def test_its_blocks_and_row_were_never_taken(self):
        driver = driver_with()
        driver.add(make_request("g", prompt=10, deadline=Nanos(9 * MS)))
        driver.run()

        assert driver.finished("g").usage.num_prompt_tokens == 0
        assert driver.plans == []
