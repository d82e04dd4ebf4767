"""Several steps at once: rules of `leap`, for policies that have it. Others keep them by having none.

Two books get the same traffic. In the states in which the core may offer a leap the policy of the first one leaps; that
of the second one is charged and begins step by step, as often as the first one said.
"""

import random
from collections import abc
from dataclasses import dataclass

from engine.core.leap import LeapingPolicy
from engine.core.policy import Concession, SchedulingPolicy, Service, Terms
from engine.core.types import Nanos
from engine.sim.conformance.book import CONFIG, STEP_NS, Book, flows
from engine.sim.conformance.report import require
from engine.sim.conformance.views import PlainFlow, PlainSequence

NUM_SEEDS = 4
NUM_ROUNDS = 40
MAX_STEPS = 12
TEAMS = (("a", "x", 1.0), ("b", "x", 3.0), ("c", "y", 1.0))

Make = abc.Callable[[], SchedulingPolicy]


def check_answers(make: Make) -> None:
    """`leap` says a number of steps from 0 to those that were offered, and nothing of it raises."""
    for pair in _leaps(make):
        pair.leap()


def check_steps(make: Make) -> None:
    """A leap over n steps leaves the policy as n single steps do, none of which it would have answered otherwise."""
    for pair in _leaps(make):
        num_steps = pair.leap()
        for number in range(1, num_steps + 1):
            pair.stepping.commit()
            terms = pair.stepping.begin()
            require(_plain(terms) == _plain(pair.terms), f"a leap over {num_steps} steps: other terms after {number}")
            _require_same_heads(pair, number)
        states = [_state(book) for book in (pair.leaping, pair.stepping)]
        require(states[0] == states[1], f"a leap over {num_steps} steps gives {states[0]}, single steps {states[1]}")


@dataclass(slots=True)
class _Pair:
    """Two books in the same state, in which the core may offer the first one's policy up to `num_offered` steps.

    Written by `leap`. `heads` are the arrival indexes of those that the policy named as the last plan began.
    """

    leaping: Book
    stepping: Book
    policy: LeapingPolicy
    terms: Terms
    num_offered: int

    @property
    def heads(self) -> list[int]:
        return [seq.arrival_index for seq in _heads(self.leaping)]

    def leap(self) -> int:
        """The first book's policy has leapt so many steps."""
        book, counts = self.leaping, dict[int, tuple[PlainFlow, int]]()
        for seq in book.running:
            _, count = counts.get(id(seq.flow), (seq.flow, 0))
            counts[id(seq.flow)] = seq.flow, count + 1
        services = [Service(flow, 0, count, 0) for flow, count in counts.values()]
        times = [Nanos(book.now + number * STEP_NS) for number in range(1, self.num_offered + 1)]
        num_steps = self.policy.leap(services, times)
        is_answer = type(num_steps) is int and 0 <= num_steps <= len(times)
        require(is_answer, f"leap answered {num_steps!r} where {len(times)} steps were offered")
        book.pass_decodes(num_steps)
        return num_steps


def _leaps(make: Make) -> abc.Iterator[_Pair]:
    """Pairs that may leap. Whoever takes one leaps with it; that of the second book is stepped as far, here if not
    there."""
    for seed in range(NUM_SEEDS):
        policy = make()
        if not isinstance(policy, LeapingPolicy):
            return
        books = Book(policy), Book(make())
        rng = random.Random(seed)  # noqa: S311 - traffic, not secrets
        for _ in range(NUM_ROUNDS):
            state = rng.getstate()
            terms = []
            for book in books:
                rng.setstate(state)
                terms.append(_round(book, rng))
            if _may_leap(books[0], terms[0]):
                num_left = min(seq.max_output_tokens - seq.num_output_tokens for seq in books[0].running) - 1
                yield _Pair(*books, policy, terms[1], min(MAX_STEPS, num_left))
                while books[1].now < books[0].now:
                    books[1].commit()
                    books[1].begin()


def _round(book: Book, rng: random.Random) -> Terms:
    """Requests come, end and are admitted while rows are free; then two plans that admit nobody begin, so that each
    flow's demand is settled."""
    for _ in range(rng.randint(0, 4)):
        team, organization, weight = rng.choice(TEAMS)
        prompt, output = rng.randint(1, 30), rng.randint(20, 60)
        book.arrive(team, organization=organization, weight=weight, num_prompt_tokens=prompt, max_output_tokens=output)
    for seqs in (book.running, book.waiting):
        for seq in [seq for seq in seqs if rng.random() < 0.1]:
            book.finish(seq)
    book.begin()
    while len(book.running) < CONFIG.max_num_seqs and (head := book.select()) is not None and rng.random() < 0.8:
        book.admit(head)
    for _ in range(2):
        book.commit()
        terms = book.begin()
    return terms


def _may_leap(book: Book, terms: Terms) -> bool:
    """True if the core would offer a leap: all that run decode, nobody yields, and who waits stays out."""
    if (
        not book.running
        or terms.yielding
        or any(seq.num_computed_tokens < seq.num_prompt_tokens for seq in book.running)
    ):
        return False
    if min(seq.max_output_tokens - seq.num_output_tokens for seq in book.running) < 2:
        return False
    if not book.waiting:
        return True
    return not (_has_free_row(book) and terms.paces_prefill) and _concedes_nothing(book, _heads(book))


def _require_same_heads(pair: _Pair, number: int) -> None:
    """Whoever waits stays out in the second book, and while a row is free it is the same ones that wait for it."""
    book = pair.stepping
    if not book.waiting:
        return
    heads = _heads(book)
    require(_concedes_nothing(book, heads), f"leap went on although somebody gives way after {number} steps")
    if _has_free_row(book):
        named = [seq.arrival_index for seq in heads]
        require(named == pair.heads, f"leap went on although others are selected after {number} steps")


def _heads(book: Book) -> list[PlainSequence]:
    """Whom the policy names, one behind the other."""
    passed: list[PlainSequence] = []
    while len(passed) < len(book.waiting) and (seq := book.select(tuple(passed))) is not None:
        passed.append(seq)
    return passed


def _concedes_nothing(book: Book, heads: abc.Iterable[PlainSequence]) -> bool:
    pairs = ((victim, head) for head in heads for victim in book.running)
    return all(book.policy.concede(victim, head) is Concession.NOTHING for victim, head in pairs)


def _has_free_row(book: Book) -> bool:
    return len(book.running) < CONFIG.max_num_seqs


def _plain(terms: Terms) -> tuple[object, ...]:
    """What of the terms can be compared across books and plans."""
    yielding = frozenset((flow.tenant_id, flow.priority_class.name) for flow in terms.yielding)
    flags = terms.lends, terms.paces_prefill, terms.protects_yielding, terms.concedes_by_share
    return yielding, terms.class_order, flags


def _state(book: Book) -> tuple[object, ...]:
    """What the policy tells of itself."""
    keys = [book.policy.key(seq) for seq in (*book.waiting, *book.running)]
    return keys, [book.policy.standing(flow) for flow in flows(book)], book.policy.snapshot()
