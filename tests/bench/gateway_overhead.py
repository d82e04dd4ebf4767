"""What a gateway adds to a call, and how much one process carries: authentication, limits of key, team and
organization, ledger and a tenth of the traces on.

Latencies are what is added above an empty hop, a process that forwards bytes to an upstream with the same delays: the
same open loop against either, one after the other, the difference of the percentiles. Streams: 64 at a time on average.
Rates are those of 64 callers in a closed loop over one process, with engine, database and client on the same machine;
`_of_8` is for chunks of eight tokens. The hop's own rates stand beside them, and what CPU the gateway itself used.
`http_over_grpc_p50_ms` is what a unary call takes longer through the HTTP door than over gRPC, by clients that take
turns; `_ttft` of streams. `telemetry_cost` is the share of calls per second that a process without traces has more;
with --telemetry nothing else is measured, and every call is traced. Resident memory is at the end; growth is since the
first repetition ended.
"""

import asyncio
import statistics
import tempfile
from dataclasses import dataclass
from typing import Any

from tests.bench.gateway_world import Child, Gateway, Side, child, gateway, job
from tests.bench.load_shape import Shape
from tests.bench.report import Report, arguments

UNARY = Shape(first_ms=10, gap_ms=0, num_chunks=16)
STREAM = Shape(first_ms=20, gap_ms=50, num_chunks=40)
SHORT = Shape(first_ms=0, gap_ms=0, num_chunks=1)
LONG = Shape(first_ms=0, gap_ms=0, num_chunks=128)
LONG_OF_8 = Shape(first_ms=0, gap_ms=0, num_chunks=128, chunk_tokens=8)
NUM_STREAMS = 64
STREAM_S = (STREAM.first_ms + STREAM.gap_ms * (STREAM.num_chunks - 1)) / 1e3


@dataclass(frozen=True, slots=True)
class Sizes:
    """Seconds of each measurement; calls per second of the open loop of unary calls."""

    unary_s: float
    stream_s: float
    flood_s: float
    num_turns: int
    unary_rate: float = 50.0


FULL = Sizes(unary_s=10, stream_s=12, flood_s=6, num_turns=4)
QUICK = Sizes(unary_s=3, stream_s=4, flood_s=2, num_turns=2)


@dataclass
class Bench:
    """Who is measured by whom."""

    client: Child
    http_client: Child
    hop: Side
    traced: Gateway
    untraced: Gateway
    sizes: Sizes

    async def latencies(self) -> dict[str, float]:
        """Of both sides, one after the other, and what the gateway adds."""
        sizes, rate = self.sizes, NUM_STREAMS / STREAM_S
        unary, stream = {}, {}
        for name, side in (("hop", self.hop), ("gateway", self.traced.side)):
            unary[name] = await self.client.tell(job(side, UNARY, sizes.unary_s, rate=sizes.unary_rate))
            stream[name] = await self.client.tell(job(side, STREAM, sizes.stream_s, rate=rate, is_stream=True))
        return {
            **_added("unary", unary, "whole"),
            **_added("stream_ttft", stream, "first"),
            "unary_client_cpu": unary["gateway"]["client_cpu"],
            "stream_client_cpu": stream["gateway"]["client_cpu"],
        }

    async def doors(self) -> dict[str, float]:
        """The same calls through either door of one gateway, by turns."""
        ways = {"grpc": (self.client, self.traced.side), "http": (self.http_client, self.traced.http)}
        whole: dict[str, list[float]] = {name: [] for name in ways}
        first: dict[str, list[float]] = {name: [] for name in ways}
        turn_s, rate = self.sizes.unary_s / self.sizes.num_turns, self.sizes.unary_rate
        for _ in range(self.sizes.num_turns):
            for name, (client, side) in ways.items():
                unary = await client.tell(job(side, UNARY, turn_s, rate=rate))
                stream = await client.tell(job(side, UNARY, turn_s, rate=rate, is_stream=True))
                whole[name].append(unary["whole_p50_ms"])
                first[name].append(stream["first_p50_ms"])
        return {
            "http_over_grpc_p50_ms": statistics.median(whole["http"]) - statistics.median(whole["grpc"]),
            "http_over_grpc_ttft_p50_ms": statistics.median(first["http"]) - statistics.median(first["grpc"]),
        }

    async def rates(self) -> dict[str, float]:
        """With as many callers as there are streams, without delays."""
        found = {
            **await self._flood(SHORT, "unary_per_second", "calls_per_second"),
            **await self._flood(LONG, "streamed_tokens_per_second", "tokens_per_second", is_stream=True),
            **await self._flood(LONG_OF_8, "streamed_tokens_per_second_of_8", "tokens_per_second", is_stream=True),
        }
        flood = job(self.untraced.side, SHORT, self.sizes.flood_s, callers=NUM_STREAMS)
        untraced = (await self.client.tell(flood))["calls_per_second"]
        return {**found, "telemetry_cost": 1 - found["unary_per_second"] / untraced}

    async def _flood(self, shape: Shape, name: str, measure: str, *, is_stream: bool = False) -> dict[str, float]:
        options: dict[str, Any] = {"callers": NUM_STREAMS, "is_stream": is_stream, "min_samples": NUM_STREAMS}
        hop = await self.client.tell(job(self.hop, shape, self.sizes.flood_s, **options))
        told = job(self.traced.side, shape, self.sizes.flood_s, **options)
        cpu_s = self.traced.cpu_s()
        found = await self.client.tell(told)
        cpu_share = (self.traced.cpu_s() - cpu_s) / (told["warm_s"] + self.sizes.flood_s)
        return {
            name: found[measure],
            f"{name}_hop": hop[measure],
            f"{name}_gateway_cpu": cpu_share,
            f"{name}_client_cpu": found["client_cpu"],
        }


def _added(name: str, sides: dict[str, dict[str, float]], kind: str) -> dict[str, float]:
    found = {}
    for quantile in ("p50_ms", "p99_ms"):
        hop, through = (sides[side][f"{kind}_{quantile}"] for side in ("hop", "gateway"))
        found |= {f"{name}_{quantile}": through - hop, f"{name}_hop_{quantile}": hop}
    return found


async def measure(report: Report, sizes: Sizes, num_repetitions: int) -> None:
    """All repetitions, against the same processes."""
    with tempfile.TemporaryDirectory(prefix="evenflow-") as directory:
        async with child("tests.bench.fake_upstream", directory) as upstream:
            addresses = await upstream.tell()
            async with (
                child("tests.bench.empty_hop", addresses["direct"]) as hop,
                child("tests.bench.grpc_load") as client,
                child("tests.bench.http_load") as http_client,
                gateway(addresses) as traced,
                gateway(addresses, traced_share=0) as untraced,
            ):
                bench = Bench(client, http_client, Side((await hop.tell())["address"]), traced, untraced, sizes)
                await client.tell(job(traced.side, SHORT, sizes.flood_s, callers=NUM_STREAMS))
                await _repeat(report, bench, num_repetitions)


async def measure_telemetry(report: Report, sizes: Sizes, num_repetitions: int) -> None:
    """What it costs to trace everything: against a process that traces nothing, by turns."""
    with tempfile.TemporaryDirectory(prefix="evenflow-") as directory:
        async with child("tests.bench.fake_upstream", directory) as upstream:
            addresses = await upstream.tell()
            async with (
                child("tests.bench.grpc_load") as client,
                gateway(addresses, traced_share=1) as traced,
                gateway(addresses, traced_share=0) as untraced,
            ):
                sides = {"traced": traced.side, "untraced": untraced.side}
                for _ in range(num_repetitions):
                    report.add(**await _telemetry_cost(client, sides, sizes))


async def _telemetry_cost(client: Child, sides: dict[str, Side], sizes: Sizes) -> dict[str, float]:
    """The share of the throughput that is lost: of unary calls, of streams, and the larger of the two."""
    rates: dict[tuple[str, str], list[float]] = {}
    for _ in range(sizes.num_turns):
        for name, side in sides.items():
            flood = {"callers": NUM_STREAMS, "min_samples": NUM_STREAMS}
            unary = await client.tell(job(side, SHORT, sizes.flood_s, **flood))
            stream = await client.tell(job(side, LONG, sizes.flood_s, is_stream=True, **flood))
            rates.setdefault(("unary", name), []).append(unary["calls_per_second"])
            rates.setdefault(("stream", name), []).append(stream["tokens_per_second"])
    medians = {which: statistics.median(values) for which, values in rates.items()}
    lost = {kind: 1 - medians[kind, "traced"] / medians[kind, "untraced"] for kind in ("unary", "stream")}
    return {"telemetry_cost": max(lost.values()), **{f"telemetry_cost_{kind}": share for kind, share in lost.items()}}


async def _repeat(report: Report, bench: Bench, num_repetitions: int) -> None:
    first_mb = 0.0
    for _ in range(num_repetitions):
        found = {**await bench.latencies(), **await bench.doors(), **await bench.rates()}
        report.add(**found, rss_mb=bench.traced.rss_mb())
        first_mb = first_mb or bench.traced.rss_mb()
    report.add(rss_growth_mb=bench.traced.rss_mb() - first_mb)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--telemetry", action="store_true", help="only what it costs to trace every call")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    traced_share = 1 if options.telemetry else 0.1
    rate, size = sizes.unary_rate, len(UNARY.prompt)
    config = {"streams": NUM_STREAMS, "unary_rate": rate, "traced_share": traced_share, "prompt": size}
    report = Report("gateway_overhead", config)
    run = measure_telemetry if options.telemetry else measure
    asyncio.run(run(report, sizes, 1 if options.quick else options.repetitions))
    report.publish(options.json)


if __name__ == "__main__":
    main()
