"""Skip-join multi-level feedback queue."""

from engine.core.costs import Prices, StepCosts
from engine.core.policy import Concession
from engine.plugins import load_scheduling_policy
from tests.policies.views import MS, NOW, admit, begin, drain, make_view, preempt

# A prompt token takes as long as a decode step, so that quanta and tokens are one unit.
PRICES = Prices(step=StepCosts(base_ns=0.0, prefill_token_ns=1e6, decode_ns=1e6))


def make_mlfq(**options: str):
    policy = load_scheduling_policy("mlfq", options)
    begin(policy, prices=PRICES)
    return policy


def level(policy, seq) -> float:
    return policy.key(seq)[0]


def test_a_request_joins_the_first_level_whose_quantum_covers_its_prompt():
    policy = make_mlfq(quantum="4")
    levels = []
    for index, prompt in enumerate((1, 4, 5, 8, 9, 16, 17)):
        seq = make_view(index, prompt=prompt)
        policy.on_arrive(seq, NOW)
        levels.append(level(policy, seq))

    assert levels == [0, 0, 1, 1, 2, 2, 3]


def test_a_request_goes_down_a_level_when_its_quantum_is_used_up():
    policy = make_mlfq(quantum="4")
    seq = make_view(prompt=1, output=100)
    policy.on_arrive(seq, NOW)
    admit(policy, seq)
    levels = []
    for seq.num_output_tokens in range(30):
        levels.append(level(policy, seq))

    # The prompt and three tokens, then eight, then sixteen.
    assert levels == [0] * 3 + [1] * 8 + [2] * 16 + [3] * 3


def test_nobody_goes_below_the_last_level():
    policy = make_mlfq(levels="3")
    seq = make_view(prompt=1, num_output_tokens=1_000, output=2_000)
    huge = make_view(1, prompt=5_000)
    for each in (seq, huge):
        policy.on_arrive(each, NOW)

    assert level(policy, seq) == level(policy, huge) == 2


def test_short_work_comes_first_whoever_came_first():
    policy = make_mlfq()
    for index, prompt in enumerate((60, 2, 30, 1)):
        policy.on_arrive(make_view(index, prompt=prompt), NOW)

    assert drain(policy) == [3, 1, 2, 0]


def test_inside_a_level_those_that_ran_come_first_then_order_of_arrival():
    policy = make_mlfq()
    for index in (0, 1):
        policy.on_arrive(make_view(index, prompt=20), NOW)
    preempt(policy, make_view(2, prompt=20), swap=True)

    assert drain(policy) == [2, 0, 1]


def test_whoever_has_starved_starts_again_at_the_first_level():
    policy = make_mlfq(starvation_ms="100")
    long = make_view(0, prompt=500)
    policy.on_arrive(long, NOW)
    policy.on_arrive(make_view(1, prompt=2), NOW)
    begin(policy, now=99 * MS, prices=PRICES)
    assert policy.select(()) is not long

    begin(policy, now=100 * MS, prices=PRICES)
    assert level(policy, long) == 0
    assert policy.select(()) is long


def test_without_a_starvation_time_nobody_is_promoted():
    policy = make_mlfq(starvation_ms="0")
    long = make_view(0, prompt=500)
    policy.on_arrive(long, NOW)
    begin(policy, now=10**15, prices=PRICES)

    assert level(policy, long) > 0


def test_a_sequence_gives_way_to_a_level_above_its_own_only_and_by_swap():
    policy = make_mlfq()
    long, short, equal = (make_view(index, prompt=prompt) for index, prompt in enumerate((100, 2, 100)))
    for seq in (long, short, equal):
        policy.on_arrive(seq, NOW)

    assert policy.concede(long, short) is Concession.SWAP
    assert policy.concede(short, long) is Concession.NOTHING
    assert policy.concede(long, equal) is Concession.NOTHING


def test_a_head_without_room_may_be_passed():
    policy = make_mlfq()
    seqs = [make_view(index, prompt=2) for index in range(3)]
    for seq in seqs:
        policy.on_arrive(seq, NOW)

    assert policy.select(seqs[:1]) is seqs[1]
    assert policy.select(seqs[:2]) is seqs[2]
    assert policy.select(seqs) is None
    assert policy.select(()) is seqs[0]


def test_what_is_cached_of_a_prompt_costs_no_level():
    policy = make_mlfq()
    seq = make_view(prompt=500, num_cached_prompt_tokens=499)
    policy.on_arrive(seq, NOW)

    assert level(policy, seq) == 0
