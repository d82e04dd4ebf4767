"""How soon a change governs what four gateways and the engine do: told by NOTIFY, and with NOTIFY cut.

The gateways are processes over one Postgres and one engine: the real service and scheduler, a model of one token per
byte. Each measured call is a whole generation. A change is written to the store by a process that is no gateway, and
its time counts from the moment at which it was asked for, its own transaction included.

revoked key     until the answer to the last request that any gateway accepted
changed limit   the same; half of the limits turn requests away that were accepted, half take in what was turned away
changed weight  until the engine says between two steps that the weight is in force: what the next step's order is by

Each gateway is asked again a tenth of a second after it has answered. Other tenants stream meanwhile. All three kinds
of change go on at once, at random moments. Cut means: the gateways listen on a channel where nobody announces anything.
Percentiles are over all samples of a run; of fewer than 300 samples `p99` is the largest one.
"""

import asyncio
import random
import time
from collections import abc
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import grpc

from evenflow.engine.v1 import engine_pb2, engine_pb2_grpc
from evenflow.inference.v1 import generation_pb2 as pb
from gateway.api_key import GeneratedKey
from gateway.store.enums import Dimension
from gateway.store.key_ends import revoke_key
from gateway.store.quota_policies import update_quota_policy
from gateway.store.records import QuotaLimit, QuotaPolicySettings, ResourcePath
from gateway.store.teams import get_team
from tests.bench.quota_fleet import CHANGE, MAIN, ORGANIZATION, Fleet, running
from tests.bench.report import Report, arguments
from tests.engine.engine_process import engine_process

NUM_GATEWAYS = 4
REVOKED = "revoked"
CUT = "from gateway.store import cache; cache.CHANNEL = 'nobody_announces_here'; "
MAINS = {"notify": MAIN, "poll": CUT + MAIN}
REVOCATIONS_PER_S = {"notify": 5.0, "poll": 2.5}
PROBE_S, LOOK_S, LOAD_S = 0.1, 0.01, 0.25
MAX_PAUSE_S = 2.0  # as long as a poll, so that no change is in step with it
REQUEST_TOKENS = 20
MIN_SAMPLES = 300
REFUSALS = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many of each change, and by how many tenants those of weights and of limits."""

    num_keys: int
    num_weights: int
    num_limits: int
    num_weight_teams: int = 10
    num_limit_teams: int = 4


FULL = Sizes(num_keys=300, num_weights=300, num_limits=100)
QUICK = Sizes(num_keys=20, num_weights=20, num_limits=8)


@dataclass
class Seen:
    """The weights that the engine has in force, by path, as it said last."""

    weights: dict[tuple[str, ...], float] = field(default_factory=dict)

    async def watch(self, address: str) -> None:
        """Until cancelled."""
        async with grpc.aio.insecure_channel(address) as channel:
            stub = engine_pb2_grpc.EngineServiceStub(channel)
            while True:
                stats = await stub.GetStats(engine_pb2.GetStatsRequest())
                paths = ((tuple(node.id for node in tenant.path), tenant.path[-1].weight) for tenant in stats.tenants)
                self.weights = dict(paths)
                await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def scheduling_engine(directory: Path) -> abc.AsyncIterator[str]:
    """The address of an engine that schedules as the real one does."""
    with engine_process("tests.ledger.engine_process", directory) as engine:
        await asyncio.to_thread(engine.wait_until_serving)
        yield engine.target


def policy(burst: int = 1_000_000, weight: float = 1.0) -> QuotaPolicySettings:
    """No more input tokens than `burst` in one request."""
    return QuotaPolicySettings(limits=(QuotaLimit(Dimension.INPUT_TOKENS, 1_000_000, 1000, burst),), weight=weight)


async def set_policy(fleet: Fleet, team: str, settings: QuotaPolicySettings) -> None:
    path = ResourcePath(ORGANIZATION, team)
    await update_quota_policy(fleet.database, CHANGE, path, "default", lambda _: settings)


async def accepts(fleet: Fleet, gateway: int, key: str) -> bool:
    """Whether a gateway takes a request with the key, and serves it."""
    spec = pb.GenerationSpec(text="x" * REQUEST_TOKENS, stopping=pb.StoppingOptions(max_output_tokens=1))
    try:
        await fleet.stubs[gateway].Generate(
            pb.GenerateRequest(spec=spec), metadata=(("authorization", f"Bearer {key}"),)
        )
    except grpc.aio.AioRpcError as error:
        if error.code() not in REFUSALS:
            raise
        return False
    return True


async def last_other_answer(fleet: Fleet, gateway: int, key: str, is_accepted: bool) -> float:
    """When a gateway last answered otherwise than `is_accepted`, on the monotonic clock; asks until it does not."""
    last_s = 0.0
    while await accepts(fleet, gateway, key) is not is_accepted:
        last_s = time.monotonic()
        await asyncio.sleep(PROBE_S)
    return last_s


async def follow(fleet: Fleet, key: str, change: abc.Awaitable[object], is_accepted: bool) -> float:
    """Seconds from now, as the change is asked for, to the last answer of any gateway that does not heed it."""
    began_s = time.monotonic()
    answers = (last_other_answer(fleet, gateway, key, is_accepted) for gateway in range(NUM_GATEWAYS))
    _, *ends_s = await asyncio.gather(change, *answers)
    return max(0.0, max(ends_s) - began_s)


async def fresh_keys(fleet: Fleet, num_keys: int) -> list[GeneratedKey]:
    """So many keys of one team, which every gateway knows."""
    await fleet.tenant(REVOKED, policy())
    keys = [await fleet.make_key(REVOKED) for _ in range(num_keys)]
    await fleet.known(keys[-1].text)
    return keys


async def revocations(fleet: Fleet, keys: list[GeneratedKey], per_second: float) -> list[float]:
    """The keys are revoked, at random moments."""
    moments = sorted(random.uniform(0, len(keys) / per_second) for _ in keys)

    async def revoke(number: int) -> float:
        await asyncio.sleep(moments[number])
        path = ResourcePath(ORGANIZATION, REVOKED, keys[number].public_id)
        change = revoke_key(fleet.database, CHANGE, path, "bench")
        return await follow(fleet, keys[number].text, change, is_accepted=False)

    return list(await asyncio.gather(*(revoke(number) for number in range(len(keys)))))


async def limits(fleet: Fleet, team: str, key: str, num_changes: int) -> list[float]:
    """A team's limit turns its requests away and takes them in again."""
    samples = []
    for number in range(num_changes):
        await asyncio.sleep(random.uniform(0, MAX_PAUSE_S))
        is_accepted = number % 2 == 1
        change = set_policy(fleet, team, policy() if is_accepted else policy(burst=REQUEST_TOKENS - 1))
        samples.append(await follow(fleet, key, change, is_accepted))
    return samples


async def weights(fleet: Fleet, team: str, key: str, num_changes: int, seen: Seen) -> list[float]:
    """A team that is at work gets another weight each time."""
    samples = []
    record = await get_team(fleet.database, ResourcePath(ORGANIZATION, team))
    load = asyncio.create_task(stream(fleet, key))
    while not (mine := [path for path in seen.weights if path[-1] == str(record.id)]):  # noqa: ASYNC110 - as below
        await asyncio.sleep(LOOK_S)
    for number in range(num_changes):
        await asyncio.sleep(random.uniform(0, MAX_PAUSE_S))
        weight, began_s = 2.0 + number, time.monotonic()
        await set_policy(fleet, team, policy(weight=weight))
        while seen.weights[mine[0]] != weight:  # noqa: ASYNC110 - the engine is asked as often, and announces nothing
            await asyncio.sleep(LOOK_S)
        samples.append(time.monotonic() - began_s)
    load.cancel()
    with suppress(asyncio.CancelledError):
        await load
    return samples


async def stream(fleet: Fleet, key: str) -> None:
    """One request after the other, through one gateway after the other, until cancelled."""
    gateway = random.randrange(NUM_GATEWAYS)
    while True:
        await fleet.call(key, REQUEST_TOKENS, gateway, is_stream=True)
        gateway += 1
        await asyncio.sleep(LOAD_S)


async def measure(mode: str, sizes: Sizes) -> dict[str, float]:
    """All changes of one mode at once."""
    seen, began_s, cpu_s = Seen(), time.monotonic(), time.process_time()
    async with running(NUM_GATEWAYS, MAINS[mode], scheduling_engine) as fleet:
        watching = asyncio.create_task(seen.watch(fleet.engine_address))
        keys = await fresh_keys(fleet, sizes.num_keys)
        weighed = {f"w{n}": await fleet.tenant(f"w{n}", policy()) for n in range(sizes.num_weight_teams)}
        limited = {f"l{n}": await fleet.tenant(f"l{n}", policy()) for n in range(sizes.num_limit_teams)}
        each_weight, each_limit = sizes.num_weights // sizes.num_weight_teams, sizes.num_limits // sizes.num_limit_teams
        of_keys, of_weights, of_limits = await asyncio.gather(
            revocations(fleet, keys, REVOCATIONS_PER_S[mode]),
            asyncio.gather(*(weights(fleet, *tenant, each_weight, seen) for tenant in weighed.items())),
            asyncio.gather(*(limits(fleet, *tenant, each_limit) for tenant in limited.items())),
        )
        watching.cancel()
    return {
        **summary(mode, of_keys),
        **summary(f"weight_{mode}", list(chain(*of_weights))),
        **summary(f"limit_{mode}", list(chain(*of_limits))),
        f"client_cpu_share_{mode}": (time.process_time() - cpu_s) / (time.monotonic() - began_s),
    }


def summary(name: str, samples: list[float]) -> dict[str, float]:
    """Median and 99th percentile, or the largest where there are few."""
    ordered = sorted(samples)
    high = ordered[int(0.99 * len(ordered))] if len(ordered) >= MIN_SAMPLES else ordered[-1]
    return {f"{name}_p50_s": ordered[len(ordered) // 2], f"{name}_p99_s": high, f"{name}_samples": len(ordered)}


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    sizes = QUICK if options.quick else FULL
    report = Report(
        "revocation", {"gateways": NUM_GATEWAYS, "probe_s": PROBE_S, "revocations_per_s": REVOCATIONS_PER_S}
    )
    for mode in MAINS:
        report.add(**asyncio.run(measure(mode, sizes)))
    report.publish(options.json)


if __name__ == "__main__":
    main()
