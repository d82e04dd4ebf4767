"""Every state and every way out of it, and what is kept and forgotten: rules of `on_arrive`, `on_leave`, `charge`."""

import gc
import types
from collections import abc

from engine.core.policy import Concession, LeaveReason, SchedulingPolicy, SequenceView, Service
from engine.core.types import SequenceStatus
from engine.sim.conformance.book import Book
from engine.sim.conformance.report import ConformanceError, require
from engine.sim.conformance.views import PlainSequence

Make = abc.Callable[[], SchedulingPolicy]

FEW, MANY = 400, 8_000  # tenants that come and go; above the number that a policy may well remember
MAX_GROWTH = 20_000  # objects, of which a policy may keep some for its latest tenants
CODE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.CodeType)


def check_states(make: Make) -> None:
    """A sequence can be cancelled in every state, and is never selected again; the others are."""
    for name, reach in STATES.items():
        book = Book(make())
        others = [book.arrive("b"), book.arrive("a")]
        seq = book.arrive("a")
        reach(book, seq)
        if seq not in book.waiting:
            _require_absent(book, seq, f"while it is {name}")
        book.finish(seq)
        _require_absent(book, seq, f"after it ended, {name}")
        for other in others:
            if other in book.running or other in book.waiting:
                book.finish(other)


def check_returns(make: Make) -> None:
    """A sequence that was held, preempted or swapped out is selected again."""
    for name in ("held", "preempted", "swapped"):
        book = Book(make())
        seq = book.arrive("a")
        STATES[name](book, seq)
        if seq in book.held:
            book.let_go(seq)
        book.begin()
        require(book.select() is seq, f"a sequence that was {name} is not selected again")


def check_takeover(make: Make) -> None:
    """A policy that takes over meets sequences and flows whose beginning it has not seen."""
    source = Book(make())
    running, waiting = source.arrive("a"), source.arrive("b")
    _run(source, running)
    policy = source.policy = make()
    policy.on_arrive(waiting, source.now)
    source.begin()
    policy.key(running)
    policy.standing(running.flow)
    require(isinstance(policy.concede(running, waiting), Concession), "concede gave no Concession")
    policy.charge(Service(running.flow, 3, 2, 1))
    policy.on_leave(running, LeaveReason.FINISHED, source.now)
    policy.charge(Service(waiting.flow, 0, 1, 0))
    require(policy.select(()) is waiting, "what waits is not selected after a takeover")


def check_snapshots(make: Make) -> None:
    """A snapshot of a used policy is taken over by a new one, which then gives the same order."""
    old = Book(make())
    for number in range(60):
        old.arrive("abcde"[number * 7 % 5], num_prompt_tokens=1 + number % 9, max_output_tokens=1 + number % 5)
        old.begin()
        while number % 3 and (seq := old.select()) is not None:
            old.admit(seq)
        old.commit()
    _drain(old)
    snapshot = old.policy.snapshot()
    require(isinstance(snapshot, bytes), f"snapshot gave {type(snapshot).__name__} instead of bytes")
    new = Book(make(), now=old.now, num_arrivals=old.num_arrivals)
    new.policy.restore(snapshot)
    require(_admissions(old) == _admissions(new), "after restore(snapshot()) the order is another")


def check_foreign_snapshots(make: Make) -> None:
    """Bytes that are no snapshot of the policy are refused with ValueError."""
    for snapshot in (b"\x00 not a snapshot", b"", b"[]", b'{"policy": "nobody"}'):
        try:
            make().restore(snapshot)
        except ValueError:
            continue
        raise ConformanceError(f"restore took {snapshot!r}")


def check_memory(make: Make) -> None:
    """What a policy keeps does not grow with the tenants and requests that came and went."""
    sizes = [_size_after(make(), number) for number in (FEW, MANY)]
    require(
        sizes[1] - sizes[0] <= MAX_GROWTH,
        f"after {FEW} tenants the policy holds {sizes[0]} objects, after {MANY} {sizes[1]}",
    )


def _run(book: Book, seq: PlainSequence) -> None:
    """`seq` is admitted and computed, whoever is first."""
    book.begin()
    book.admit(seq)
    book.commit()


def _wait(book: Book, seq: PlainSequence) -> None:
    book.begin()


def _hold(book: Book, seq: PlainSequence) -> None:
    book.begin()
    book.hold(seq)


def _let_go(book: Book, seq: PlainSequence) -> None:
    _hold(book, seq)
    book.let_go(seq)


def _pause(book: Book, seq: PlainSequence) -> None:
    _run(book, seq)
    seq.status = SequenceStatus.PAUSED


def _preempt(book: Book, seq: PlainSequence) -> None:
    _run(book, seq)
    book.preempt(seq)


def _swap_out_partly(book: Book, seq: PlainSequence) -> None:
    _run(book, seq)
    seq.status = SequenceStatus.SWAPPING_OUT


def _swap(book: Book, seq: PlainSequence) -> None:
    _run(book, seq)
    book.preempt(seq, swap=True)


def _swap_in(book: Book, seq: PlainSequence) -> None:
    _swap(book, seq)
    book.begin()
    book.admit(seq)
    seq.status = SequenceStatus.SWAPPING_IN


def _hold_swapped(book: Book, seq: PlainSequence) -> None:
    _swap(book, seq)
    book.hold(seq)


STATES: dict[str, abc.Callable[[Book, PlainSequence], None]] = {
    "waiting": _wait,
    "held": _hold,
    "waiting again": _let_go,
    "running": _run,
    "paused": _pause,
    "preempted": _preempt,
    "swapping out": _swap_out_partly,
    "swapped": _swap,
    "swapping in": _swap_in,
    "held on the host": _hold_swapped,
}


def _require_absent(book: Book, seq: PlainSequence, when: str) -> None:
    book.begin()
    passed: list[SequenceView] = []
    while (chosen := book.policy.select(tuple(passed))) is not None:
        require(chosen is not seq, f"a sequence is selected {when}")
        require(len(passed) <= len(book.waiting), "select goes on beyond what waits")
        passed.append(chosen)


def _admissions(book: Book) -> list[tuple[str, int]]:
    """In which order thirty requests that come together are admitted, one per step."""
    first = book.num_arrivals
    for number in range(30):
        book.arrive("abcde"[number * 3 % 5], num_prompt_tokens=1 + number % 4, max_output_tokens=2)
    order: list[tuple[str, int]] = []
    while book.waiting:
        book.begin()
        seq = book.select()
        require(seq is not None, "nothing is selected although sequences wait")
        assert seq is not None  # for the type checker
        order.append((seq.tenant_id, seq.arrival_index - first))
        book.admit(seq)
        book.commit()
    return order


def _drain(book: Book) -> None:
    while book.waiting or book.running:
        book.begin()
        while (seq := book.select()) is not None:
            book.admit(seq)
        book.commit()


def _size_after(policy: SchedulingPolicy, number: int) -> int:
    """Objects that the policy can reach after so many tenants have come, been served, and gone."""
    book = Book(policy)
    for index in range(number):
        seq = book.arrive(f"t{index}", num_prompt_tokens=3, max_output_tokens=1 + index % 3)
        book.begin()
        book.admit(seq)
        while book.running:
            book.commit()
        book.begin()
        book.forget()
    return _num_reachable(policy)


def _num_reachable(root: object) -> int:
    seen = {id(root)}
    stack = [root]
    while stack:
        for child in gc.get_referents(stack.pop()):
            if id(child) not in seen and not isinstance(child, CODE):
                seen.add(id(child))
                stack.append(child)
    return len(seen)
