"""Who is next: rules of `select`, `key`, `begin`, `concede` and `standing`, on random calls without a scheduler."""

import math
import random
from collections import abc

from engine.core.policy import Concession, SchedulingPolicy, Terms
from engine.core.types import PriorityClass
from engine.sim.conformance.book import Book, flows
from engine.sim.conformance.report import require
from engine.sim.conformance.views import PlainSequence

NUM_SEEDS = 3
NUM_PLANS = 120
MAX_PASSED = 8
TEAMS = (("a", "x"), ("b", "x"), ("c", "y"), ("d", "y"), ("e", "z"))
WEIGHTS = {"a": 1.0, "b": 2.0, "c": 0.5, "d": 1.0, "e": 4.0}
CLASSES = (PriorityClass("interactive", 0, 0.0, preemptible=False), PriorityClass("batch", 2, 0.1))

Make = abc.Callable[[], SchedulingPolicy]


def check_order(make: Make) -> None:
    """The sequence selected is the waiting one of lowest key; behind those passed, only what they stop is left out."""
    for book in _plans(make):
        num_passed = 0
        while book.waiting and num_passed < MAX_PASSED:
            _require_lowest(book, _selections(book))
            seq = book.select()
            if seq is None or num_passed == MAX_PASSED - 1:
                break
            book.admit(seq)
            num_passed += 1


def check_purity(make: Make) -> None:
    """Asking changes nothing: neither the next answer, nor keys, standing or counters."""
    for book in _plans(make):
        before = _state(book)
        first = _selections(book)
        require(_selections(book) == first, "asked twice, select gives two answers")
        require(_state(book) == before, "select, key, concede or standing changes what they or snapshot tell")


def check_keys(make: Make) -> None:
    """Keys are tuples of finite numbers, all of one length."""
    for book in _plans(make):
        keys = [book.policy.key(seq) for seq in (*book.waiting, *book.running, *book.held)]
        for key in keys:
            _require_finite("key", key)
        require(len(set(map(len, keys))) <= 1, f"keys have several lengths: {keys}")
        for flow in flows(book):
            _require_finite("standing", book.policy.standing(flow))


def check_concessions(make: Make) -> None:
    """`concede` gives a Concession, the same one each time, and equals do not each give way to the other."""
    for book in _plans(make):
        for claimant in book.waiting[:4]:
            for victim in book.running:
                concession = book.policy.concede(victim, claimant)
                require(isinstance(concession, Concession), f"concede gave {concession!r}")
                require(concession is book.policy.concede(victim, claimant), "concede gives two answers")
                mutual = book.policy.concede(claimant, victim)
                are_equals = victim.priority_class.rank == claimant.priority_class.rank
                take_turns = are_equals and Concession.NOTHING not in (concession, mutual)
                require(not take_turns, f"{victim.key} and {claimant.key} would each give way to the other, for ever")


def check_terms(make: Make) -> None:
    """`begin` lets only flows yield that have work, and names each class at most once."""
    for seed in range(NUM_SEEDS):
        book, rng = Book(make()), random.Random(seed)  # noqa: S311 - traffic, not secrets
        for _ in range(NUM_PLANS):
            _traffic(book, rng)
            _require_terms(book, book.begin())
            _run(book, rng)


def check_endless_arrivals(make: Make) -> None:
    """Something is selected whenever something waits, however long new requests keep coming."""
    book = Book(make())
    for number in range(400):
        book.arrive(TEAMS[number % 5][0], num_prompt_tokens=8, max_output_tokens=2)
        book.begin()
        seq = book.select()
        require(seq is not None, f"nothing was selected although {len(book.waiting)} sequences wait")
        assert seq is not None  # for the type checker
        book.admit(seq)
        book.commit()


def _plans(make: Make) -> abc.Iterator[Book]:
    """Books in many states, each right after `begin`."""
    for seed in range(NUM_SEEDS):
        book, rng = Book(make()), random.Random(seed)  # noqa: S311 - traffic, not secrets
        for _ in range(NUM_PLANS):
            _traffic(book, rng)
            book.begin()
            yield book
            _run(book, rng)


def _traffic(book: Book, rng: random.Random) -> None:
    """What may happen between two plans: arrivals, preemptions of both kinds, holds, cancels."""
    for _ in range(rng.randint(0, 3)):
        team, organization = rng.choice(TEAMS)
        book.arrive(
            team,
            organization=organization,
            weight=WEIGHTS[team],
            priority_class=rng.choice(CLASSES),
            num_prompt_tokens=rng.randint(1, 40),
            max_output_tokens=rng.randint(1, 12),
        )
    for seq in list(book.running):
        if rng.random() < 0.1:
            book.preempt(seq, swap=rng.random() < 0.5)
    for seqs, act, share in ((book.held, book.let_go, 0.3), (book.waiting, book.hold, 0.05)):
        for seq in [seq for seq in seqs if rng.random() < share]:
            act(seq)
    for seqs in (book.waiting, book.running, book.held):
        for seq in [seq for seq in seqs if rng.random() < 0.02]:
            book.finish(seq)


def _run(book: Book, rng: random.Random) -> None:
    """The rest of a plan: some admissions, then a step."""
    for _ in range(rng.randint(0, 2)):
        seq = book.select()
        if seq is not None:
            book.admit(seq)
    book.commit()


def _selections(book: Book) -> list[PlainSequence]:
    """Whom the policy names, one behind the other, if nobody finds room."""
    passed: list[PlainSequence] = []
    while len(passed) < MAX_PASSED and (seq := book.select(tuple(passed))) is not None:
        passed.append(seq)
    return passed


def _require_lowest(book: Book, selections: list[PlainSequence]) -> None:
    require(bool(selections), f"nothing is selected although {len(book.waiting)} sequences wait")
    ranked = sorted(book.waiting, key=lambda seq: (book.policy.key(seq), seq.arrival_index))
    first = selections[0]
    require(first is ranked[0], f"select named {first.key}, but the lowest key is that of {ranked[0].key}")
    for number, seq in enumerate(selections):
        passed = selections[:number]
        for other in ranked[: ranked.index(seq)]:
            require(other in passed or _stops(passed, other), f"{other.key} comes before {seq.key}, but was left out")


def _stops(passed: list[PlainSequence], seq: PlainSequence) -> bool:
    """True if `seq` may have to stop behind one of its tenant, or of its class, that found no room."""
    return any(seq.tenant_id == other.tenant_id or seq.priority_class is other.priority_class for other in passed)


def _state(book: Book) -> tuple[object, ...]:
    seqs = (*book.waiting, *book.running)
    keys = tuple(book.policy.key(seq) for seq in seqs)
    return keys, tuple(map(book.policy.standing, flows(book))), book.policy.snapshot()


def _require_finite(what: str, numbers: object) -> None:
    require(isinstance(numbers, tuple), f"{what} gave {numbers!r} instead of a tuple")
    assert isinstance(numbers, tuple)  # for the type checker
    for number in numbers:
        is_number = isinstance(number, int | float) and math.isfinite(number)
        require(is_number, f"{what} gave {numbers!r}: only finite numbers have an order")


def _require_terms(book: Book, terms: Terms) -> None:
    busy = {id(seq.flow) for seq in (*book.waiting, *book.running, *book.held)}
    require(all(id(flow) in busy for flow in terms.yielding), "a flow without any sequence yields")
    order = terms.class_order
    require(order is None or len(order) == len(set(order)), f"a class is named twice: {order}")
