"""The overview as values for its template: what the engines do now, for whom, and who is ahead of whom. Pure.

Whoever may read the whole platform sees all of it. Anybody else sees their own teams only: what those have running and
waiting, and how they share what they were served together; nothing from which the others' traffic could be told.
"""

from collections import abc
from dataclasses import dataclass
from datetime import datetime

from gateway.console.overview.readings import bound_of, has_work
from gateway.console.overview.sampler import Reading
from gateway.console.words import team_path
from gateway.fair_shares import Path, shares_of_sharing
from gateway.served import Served
from gateway.status import EngineReport, EngineStats, SystemReport, TenantStats
from gateway.words import short_name

MAX_TENANTS = 50

NameOf = abc.Callable[[Path], str]
Sees = abc.Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Blocks:
    """KV blocks of one state, and what part of their pool that is."""

    state: str
    num_blocks: int
    share: float


@dataclass(frozen=True, slots=True)
class EngineLine:
    """One engine. `stats` is None exactly when it did not answer; then there are no blocks.

    found, drafts   of all prompts, what the prefix cache had; of tokens guessed ahead, what was right; None: no such
    """

    address: str
    model: str
    stats: EngineStats | None
    device_blocks: tuple[Blocks, ...] = ()
    host_blocks: tuple[Blocks, ...] = ()
    found: float | None = None
    drafts: float | None = None


@dataclass(frozen=True, slots=True)
class TenantLine:
    """One team at all engines together.

    team, is_known    as people write it; of one that no gateway knows, its ids
    share, fair       of what all lines were served lately, and what their weights give it of that; None: nothing was
    lead              ahead of the least served sibling that has work, in cost units by weight; None: not told here
    found, drafts     of its prompts, what the prefix cache had; of tokens guessed ahead, what was right; None: no such
    """

    team: str
    is_known: bool
    weight: float
    num_running: int
    num_waiting: int
    num_paused: int
    num_swapped: int
    num_device_blocks: int
    tokens_per_s: float
    share: float | None
    fair: float | None
    lead: float | None
    prompt_tokens: int
    output_tokens: int
    recomputed_tokens: int
    borrowed_tokens: int
    wait_s: float
    num_pauses: int
    num_swaps: int
    found: float | None
    drafts: float | None


@dataclass(frozen=True, slots=True)
class Overview:
    """`tenants`: those first that were served most lately, then those that have work. `per_second`: of all of them.

    What is None is not for this reader, or cannot be told. `lately_s` is how long the shares reach back.
    """

    at: datetime
    sees_all: bool
    per_second: Served | None
    num_running: int
    num_waiting: int
    num_paused: int
    num_swapped: int
    lately_s: float
    gap: float | None
    bound: float | None
    jain: float | None
    engines: tuple[EngineLine, ...]
    tenants: tuple[TenantLine, ...]
    num_left_out: int
    report: SystemReport | None


def overview(reading: Reading, name_of: NameOf, sees: Sees, *, sees_all: bool) -> Overview:
    """What of `reading` somebody sees. `sees` says of a team's resource name whether they may."""
    merged = {path: parts for path, parts in _by_tenant(reading.report).items() if sees_all or sees(name_of(path))}
    now = {path: served for path, served in reading.now.items() if path in merged}
    lately = {path: served for path, served in reading.lately.items() if path in merged}
    lines = _tenant_lines(merged, lately, reading, name_of, sees_all=sees_all)
    has_rates = bool(reading.now_s) and any(engine.stats for engine in reading.report.engines)
    return Overview(
        at=reading.at,
        sees_all=sees_all,
        per_second=sum(now.values(), Served()).per_second(reading.now_s) if has_rates else None,
        num_running=sum(line.num_running for line in lines),
        num_waiting=sum(line.num_waiting for line in lines),
        num_paused=sum(line.num_paused for line in lines),
        num_swapped=sum(line.num_swapped for line in lines),
        lately_s=reading.lately_s,
        gap=reading.gap if sees_all else None,
        bound=bound_of(reading.report) if sees_all else None,
        jain=reading.jain if sees_all else None,
        engines=tuple(map(_engine_line, reading.report.engines)) if sees_all else (),
        tenants=tuple(lines[:MAX_TENANTS]),
        num_left_out=max(0, len(lines) - MAX_TENANTS),
        report=reading.report if sees_all else None,
    )


def _by_tenant(report: SystemReport) -> dict[Path, list[TenantStats]]:
    found: dict[Path, list[TenantStats]] = {}
    for engine in report.engines:
        for tenant in engine.stats.tenants if engine.stats is not None else ():
            found.setdefault(tenant.path, []).append(tenant)
    return found


def _tenant_lines(
    merged: abc.Mapping[Path, abc.Sequence[TenantStats]],
    lately: abc.Mapping[Path, Served],
    reading: Reading,
    name_of: NameOf,
    *,
    sees_all: bool,
) -> list[TenantLine]:
    total = sum(served.work for served in lately.values())
    are_busy = {path: any(map(has_work, parts)) for path, parts in merged.items()}
    fair = shares_of_sharing(are_busy, lately, reading.weights)
    order = sorted(merged, key=lambda path: (-lately.get(path, Served()).work, path not in fair, name_of(path)))
    return [
        _tenant_line(
            name_of(path),
            merged[path],
            _Standing(
                tokens_per_s=reading.now.get(path, Served()).tokens / reading.now_s if reading.now_s else 0.0,
                share=lately.get(path, Served()).work / total if total else None,
                fair=fair.get(path) if total else None,
                lead=max(part.lead for part in merged[path]) if sees_all else None,
            ),
        )
        for path in order
    ]


@dataclass(frozen=True, slots=True)
class _Standing:
    """Of one team among the others: figures of TenantLine, by the same names."""

    tokens_per_s: float
    share: float | None
    fair: float | None
    lead: float | None


def _tenant_line(team: str, parts: abc.Sequence[TenantStats], standing: _Standing) -> TenantLine:
    num_found, num_computed = (
        sum(part.num_found_tokens for part in parts),
        sum(part.num_prefill_tokens for part in parts),
    )
    return TenantLine(
        team=short_name(team),
        is_known=team_path(team) is not None,
        weight=parts[0].weight,
        num_running=sum(part.num_running for part in parts),
        num_waiting=sum(part.num_waiting for part in parts),
        num_paused=sum(part.num_paused for part in parts),
        num_swapped=sum(part.num_swapped + part.num_swapping for part in parts),
        num_device_blocks=sum(part.num_device_blocks for part in parts),
        tokens_per_s=standing.tokens_per_s,
        share=standing.share,
        fair=standing.fair,
        lead=standing.lead,
        prompt_tokens=num_computed,
        output_tokens=sum(part.num_output_tokens for part in parts),
        recomputed_tokens=sum(part.num_recomputed_tokens for part in parts),
        borrowed_tokens=sum(part.num_borrowed_tokens for part in parts),
        wait_s=sum(part.wait_s for part in parts),
        num_pauses=sum(part.num_pauses for part in parts),
        num_swaps=sum(part.num_swaps_out for part in parts),
        found=_part_of(num_found, num_found + num_computed),
        drafts=_part_of(
            sum(part.num_accepted_tokens for part in parts), sum(part.num_drafted_tokens for part in parts)
        ),
    )


def _engine_line(report: EngineReport) -> EngineLine:
    stats = report.stats
    if stats is None:
        return EngineLine(report.address, report.model, None)
    pools = stats.blocks
    used = pools.num_device_blocks - pools.num_free_device_blocks - pools.num_fenced_device_blocks
    device = {"in use": used, "being copied": pools.num_fenced_device_blocks, "free": pools.num_free_device_blocks}
    host = {"in use": pools.num_host_blocks - pools.num_free_host_blocks, "free": pools.num_free_host_blocks}
    return EngineLine(
        report.address,
        report.model,
        stats,
        _blocks(device, pools.num_device_blocks),
        _blocks(host, pools.num_host_blocks),
        _part_of(stats.cache.num_found_tokens, stats.cache.num_found_tokens + stats.cache.num_computed_tokens),
        _part_of(stats.drafts.num_accepted, stats.drafts.num_verified),
    )


def _part_of(part: int, whole: int) -> float | None:
    """None of nothing."""
    return part / whole if whole else None


def _blocks(num_by_state: abc.Mapping[str, int], num_blocks: int) -> tuple[Blocks, ...]:
    if not num_blocks:
        return ()
    return tuple(Blocks(state, number, number / num_blocks) for state, number in num_by_state.items())
