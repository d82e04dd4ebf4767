"""The shared side of quotas in plain Python, under a test's clock: what `quota_exchange` must do, row by row."""

from dataclasses import dataclass, field

from gateway.store.quota_buckets import REPLICA_EXPIRY_S, Answer, Ask, Batch, Grant, StoreKey

NS_PER_S = 1_000_000_000
EXPIRY_NS = round(REPLICA_EXPIRY_S * NS_PER_S)


@dataclass
class Row:
    tat: int = 0
    ticks_per_ns: int = 1
    settled: int = 0
    holders: dict[str, tuple[int, int]] = field(default_factory=dict)
    clock_ns: int = 0
    idle_from_ns: int = 0
    idle_until_ns: int = 0


def is_rate(key: StoreKey) -> bool:
    return key[1] not in ("CONCURRENCY", "BUDGET")


@dataclass
class Centre:
    """`exchange` at the moment `now_ns`, which may go back."""

    rows: dict[StoreKey, Row] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    beats: dict[str, int] = field(default_factory=dict)

    def exchange(self, batch: Batch, now_ns: int) -> Answer:
        me = str(batch.replica)
        number = self.numbers.get(me, -1)
        if number >= batch.number - batch.is_question and not (batch.is_question and number == batch.number):
            return Answer(0, is_new=False)
        self.numbers[me], self.beats[me] = batch.number, now_ns
        alive = {name for name, beat in self.beats.items() if abs(now_ns - beat) <= EXPIRY_NS}
        assert [ask.key for ask in batch.asks] == sorted({ask.key for ask in batch.asks})
        rows = [self.rows.setdefault(ask.key, Row()) for ask in batch.asks]
        for row, ask in zip(rows, batch.asks, strict=True):
            report(row, ask, now_ns, me, alive, batch.lease_ns)
        rooms = [room(row, ask) for row, ask in zip(rows, batch.asks, strict=True)]
        claimed, short, verdicts = [0] * len(rows), set(), []
        for claim in batch.claims:
            refused = {index for index, amount in claim if amount > rooms[index]}
            short |= refused
            verdicts.append(not refused)
            for index, amount in claim if not refused else ():
                rooms[index] -= amount
                claimed[index] += amount
        grants = []
        for index, (row, ask) in enumerate(zip(rows, batch.asks, strict=True)):
            spare = 0 if index in short else min(ask.want, max(0, rooms[index] - ask.leave) // len(alive))
            lead = grant(row, ask, claimed[index], spare, me)
            grants.append(Grant(spare, rooms[index] - spare, lead))
        if batch.is_last:
            del self.beats[me]  # its number stays: the same turn may be sent once more
        return Answer(len(alive), is_new=True, grants=tuple(grants), verdicts=tuple(verdicts))


def report(row: Row, ask: Ask, now_ns: int, me: str, alive: set[str], lease_ns: int) -> None:
    step_ns = max(0, row.clock_ns - now_ns)
    row.tat -= step_ns * row.ticks_per_ns
    row.idle_from_ns -= step_ns
    row.idle_until_ns -= step_ns
    row.clock_ns = now_ns
    holders = {name: (amount, min(since, now_ns)) for name, (amount, since) in row.holders.items() if name != me}
    match ask.key[1]:
        case "BUDGET":
            row.holders = holders
        case "CONCURRENCY":
            row.holders = {name: held for name, held in holders.items() if name in alive}
        case _:
            row.holders = {name: held for name, held in holders.items() if held[1] > now_ns - lease_ns}
    row.settled += ask.settled
    if not is_rate(ask.key):
        return
    if row.ticks_per_ns != ask.limit:
        row.tat, row.ticks_per_ns = -(-row.tat * ask.limit // row.ticks_per_ns), ask.limit
    if ask.debt:
        owed, since_ns = ask.debt * ask.period_ns, now_ns - ask.debt_age_ns
        idle = ask.limit * max(0, row.idle_until_ns - max(row.idle_from_ns, since_ns))
        row.idle_from_ns = row.idle_until_ns - max(0, idle - owed) // ask.limit
        if owed > idle:
            row.tat = max(row.tat, since_ns * ask.limit) + owed - idle
    row.tat -= ask.refund * ask.period_ns
    if held(row) + ask.kept:
        lift(row, (held(row) + ask.kept) * ask.period_ns)


def lift(row: Row, lead: int) -> None:
    full_ns = -(-row.tat // row.ticks_per_ns)
    is_old = row.idle_until_ns < row.clock_ns - 10 * NS_PER_S
    if full_ns < row.clock_ns and (row.clock_ns - full_ns >= row.idle_until_ns - row.idle_from_ns or is_old):
        row.idle_from_ns, row.idle_until_ns = full_ns, row.clock_ns
    row.tat = max(row.tat, row.clock_ns * row.ticks_per_ns + lead)


def held(row: Row) -> int:
    return sum(amount for amount, _ in row.holders.values())


def room(row: Row, ask: Ask) -> int:
    if not is_rate(ask.key):
        return max(0, ask.limit - row.settled - held(row) - ask.kept)
    return max(0, ask.burst * ask.period_ns - lead_of(row)) // ask.period_ns


def lead_of(row: Row) -> int:
    return max(0, row.tat - row.clock_ns * row.ticks_per_ns)


def grant(row: Row, ask: Ask, claimed: int, spare: int, me: str) -> int:
    mine = ask.kept + spare
    if not is_rate(ask.key):
        mine += claimed
    elif claimed + spare:
        lift(row, 0)
        row.tat += (claimed + spare) * ask.period_ns
    if mine:
        row.holders[me] = (mine, row.clock_ns)
    return lead_of(row) if is_rate(ask.key) else 0
