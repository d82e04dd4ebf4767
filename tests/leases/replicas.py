"""Replicas of one quota in virtual time: books, the shared side, and a network between them that tests can cut.

What was admitted is kept as a list of charges, so that it can be held against one ideal bucket.
"""

import bisect
import random
from dataclasses import dataclass, field
from fractions import Fraction
from uuid import UUID

from gateway.errors import StoreUnavailableError
from gateway.leases.backend import RETRY_S, TICK_S, TURN_TIMEOUT_S
from gateway.leases.book import LeaseBook
from gateway.leases.claims import Claim
from gateway.quota_terms import Charge, Denied, Dimension, Limit, ReservationEndedError, Reserved
from gateway.store.quota_buckets import Answer, Batch
from tests.leases.centre import NS_PER_S, Centre

TICK_NS = round(TICK_S * NS_PER_S)
RETRY_NS = round(RETRY_S * NS_PER_S)
TIMEOUT_NS = round(TURN_TIMEOUT_S * NS_PER_S)
NODE = "organizations/acme"


def tokens(limit: int, burst: int, period_s: int = 1, **more) -> Limit:
    """A limit on input tokens."""
    return Limit(NODE, Dimension.INPUT_TOKENS, limit, period_s * NS_PER_S, burst, **more)


def charge(amount: int) -> Charge:
    return Charge(1, input_tokens=amount)


@dataclass
class Message:
    """A turn on its way: to the shared side, then back."""

    batch: Batch
    sent_ns: int
    taken_ns: int = 0
    answer: Answer | None = None


@dataclass
class Replica:
    """`offset_ns` is how its monotonic clock differs from the world's."""

    book: LeaseBook
    offset_ns: int
    message: Message | None = None
    next_tick_ns: int = 0
    is_cut: bool = False
    settled: dict[int, int] = field(default_factory=dict)
    """Refunds by the number of the turn that tells them; 0: none yet."""


@dataclass
class World:
    """`now_ns` is true time. `charges` are (time, amount): when the shared side, or a lease here, was charged; negative
    where a refund took effect.
    """

    seed: int = 1
    now_ns: int = 1000 * NS_PER_S
    database_offset_ns: int = 5000 * NS_PER_S
    centre: Centre = field(default_factory=Centre)
    replicas: list[Replica] = field(default_factory=list)
    charges: list[tuple[int, int]] = field(default_factory=list)
    reserved: dict[str, tuple[Replica, int]] = field(default_factory=dict)
    waiting: dict[int, tuple[Claim, str, int]] = field(default_factory=dict)
    results: dict[str, object] = field(default_factory=dict)
    num_ids: int = 0
    num_turns: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def add_replica(self) -> Replica:
        uuid = UUID(int=self.rng.getrandbits(128))
        replica = Replica(LeaseBook(uuid), self.rng.randrange(10**15), next_tick_ns=self.now_ns)
        self.replicas.append(replica)
        return replica

    def clock(self, replica: Replica) -> int:
        return self.now_ns + replica.offset_ns

    def reserve(self, replica: Replica, limits: tuple[Limit, ...], amount: int) -> str:
        """Ask for it; `results` tells what came of it, when it has."""
        self.num_ids += 1
        name = f"r{self.num_ids}"
        try:
            verdict = replica.book.reserve(name, limits, charge(amount), self.clock(replica))
        except StoreUnavailableError as error:
            self.results[name] = error
            return name
        if isinstance(verdict, Claim):
            self.waiting[id(verdict)] = (verdict, name, amount)
        else:
            self._conclude(replica, name, amount, verdict, self.now_ns)
        return name

    def extend(self, name: str, more: int) -> str:
        """Ask for more of a reservation; the result has a name of its own."""
        self.num_ids += 1
        replica, _ = self.reserved[name]
        own_name = f"e{self.num_ids}"
        try:
            verdict = replica.book.extend(name, Charge(0, input_tokens=more), self.clock(replica))
        except StoreUnavailableError as error:
            self.results[own_name] = error
            return own_name
        if isinstance(verdict, Claim):
            self.waiting[id(verdict)] = (verdict, own_name, more)
        else:
            self._conclude(replica, own_name, more, verdict, self.now_ns)
        return own_name

    def settle(self, name: str, used: int) -> None:
        replica, amount = self.reserved.pop(name)
        assert replica.book.settle(name, charge(used), self.clock(replica))
        replica.settled[0] = replica.settled.get(0, 0) + amount - used

    def run(self, duration_ns: int, every_ns: int = NS_PER_S // 100, latency_ns: int = NS_PER_S // 500) -> None:
        """Time passes, and replicas make the turns that they would make."""
        end_ns = self.now_ns + duration_ns
        while self.now_ns < end_ns:
            for replica in self.replicas:
                self.attend(replica, latency_ns)
            self.now_ns = min(end_ns, self.now_ns + every_ns)

    def attend(self, replica: Replica, latency_ns: int = 0) -> None:
        """Whatever is due at this replica happens, as in the loop around a book."""
        if replica.message is not None:
            if replica.is_cut:
                if self.now_ns - replica.message.sent_ns >= TIMEOUT_NS:
                    self.lose(replica)
            elif self.now_ns - replica.message.sent_ns >= latency_ns:
                self.take(replica)
                self.receive(replica)
            return
        needed_ns = replica.book.next_turn_ns(self.clock(replica))
        if self.now_ns >= replica.next_tick_ns or (needed_ns is not None and needed_ns <= self.clock(replica)):
            self.send(replica)
            replica.next_tick_ns = self.now_ns + (RETRY_NS if replica.book.is_cut_off else TICK_NS)

    def send(self, replica: Replica) -> None:
        batch = replica.book.plan(self.clock(replica))
        if batch is None:
            return
        replica.message = Message(batch, self.now_ns)
        if not batch.is_question:
            replica.settled[batch.number] = replica.settled.pop(0, 0)

    def take(self, replica: Replica) -> None:
        """The shared side has the message."""
        assert replica.message is not None
        self.take_message(replica, replica.message)

    def take_message(self, replica: Replica, message: Message) -> None:
        """The same with a message that the replica may have given up."""
        self.num_turns += 1
        message.taken_ns = self.now_ns
        message.answer = self.centre.exchange(message.batch, self.now_ns + self.database_offset_ns)
        if not message.answer.is_new:
            return
        refund = replica.settled.pop(message.batch.number - message.batch.is_question, 0)
        if message.batch.is_question:
            replica.settled[0] = replica.settled.get(0, 0) + refund
        elif refund:
            self.charges.append((self.now_ns, -refund))

    def receive(self, replica: Replica) -> None:
        message, replica.message = replica.message, None
        assert message is not None
        assert message.answer is not None
        self._tell(replica, replica.book.answer(message.answer, self.clock(replica)), message.taken_ns)

    def lose(self, replica: Replica) -> None:
        """No answer comes."""
        replica.message = None
        self._tell(replica, replica.book.fail(self.clock(replica)), self.now_ns)

    def crash(self, replica: Replica) -> None:
        self.replicas.remove(replica)
        self.reserved = {name: held for name, held in self.reserved.items() if held[0] is not replica}

    def overshoot(self, limit: Limit) -> Fraction:
        """The largest excess of any window that ends now or before over what one bucket admits, in tokens."""
        worst, level, then_ns = 0, 0, 0
        for at_ns, amount in self.charges:
            level = max(0, level - (at_ns - then_ns) * limit.limit) + amount * limit.period_ns
            worst, then_ns = max(worst, level), at_ns
        return Fraction(worst, limit.period_ns) - limit.burst

    def num_admitted(self) -> int:
        return sum(amount for _, amount in self.charges if amount > 0)

    def _tell(self, replica: Replica, decided, at_ns: int) -> None:
        for claim, verdict in decided:
            _, name, amount = self.waiting.pop(id(claim))
            self._conclude(replica, name, amount, verdict, at_ns)

    def _conclude(self, replica: Replica, name: str, amount: int, verdict: object, at_ns: int) -> None:
        assert isinstance(verdict, Reserved | Denied | StoreUnavailableError | ReservationEndedError)
        self.results[name] = verdict
        if isinstance(verdict, Reserved):
            bisect.insort(self.charges, (at_ns, amount), key=lambda charge: charge[0])
            held = self.reserved.get(verdict.reservation_id, (replica, 0))[1]
            self.reserved[verdict.reservation_id] = (replica, held + amount)


def world_of(num_replicas: int) -> World:
    world = World()
    for _ in range(num_replicas):
        world.add_replica()
    world.run(3 * NS_PER_S)
    return world


def flood(world: World, limit, amount: int, seconds: int, used: int | None = None) -> None:
    """Every replica asks for `amount` each 20 ms, whatever it is told; requests end at once."""
    for _ in range(seconds * 50):
        for replica in world.replicas:
            world.reserve(replica, (limit,), amount)
        world.run(NS_PER_S // 50)
        for name in list(world.reserved):
            world.settle(name, amount if used is None else used)
