"""From figures to lines that fit a terminal of any width from 60 columns on: a heading, the engines, the teams."""

from collections import abc
from dataclasses import dataclass
from datetime import timedelta

from rich.console import Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.top.figures import Figures, SortKey, TeamFigures, ordered
from gateway.words import counted, lost_steps_text, part_text, policy_text, short_name

BAR_WIDTH = 24
MIN_TEAM_WIDTH = 12
THOUSAND = 1000
STRONG, FAINT, BAD = Style(bold=True), Style(dim=True), Style(color="red", bold=True)
IN_USE, COPIED = Style(color="green"), Style(color="yellow")


@dataclass(frozen=True, slots=True)
class Column:
    """Figures of a team, `width` wide with its heading. Those of the highest `rank` are left out first."""

    heading: str
    width: int
    rank: int
    text: abc.Callable[[TeamFigures], str]


COLUMNS: tuple[Column, ...] = (
    Column("WEIGHT", 6, 4, lambda team: f"{team.weight:g}"),
    Column("SHARE", 6, 0, lambda team: f"{team.share:.1%}"),
    Column("FAIR", 6, 0, lambda team: f"{team.fair:.1%}"),
    Column("LEAD", 5, 1, lambda team: compact(team.lead)),
    Column("TOK/S", 5, 0, lambda team: "-" if team.tokens_per_s is None else compact(team.tokens_per_s)),
    Column("RUN", 4, 0, lambda team: compact(team.num_running)),
    Column("WAIT", 4, 0, lambda team: compact(team.num_waiting)),
    Column("PAUS", 4, 5, lambda team: compact(team.num_paused)),
    Column("SWAP", 4, 6, lambda team: compact(team.num_swapped)),
    Column("BLOCKS", 6, 7, lambda team: compact(team.num_blocks)),
    Column("BORROWED", 8, 3, lambda team: compact(team.borrowed)),
    Column("PAUSES", 6, 2, lambda team: compact(team.num_pauses)),
    Column("SWAPS", 5, 2, lambda team: compact(team.num_swaps)),
    Column("FOUND", 6, 8, lambda team: part_text(team.num_found, team.num_prompt)),
)


def heading(figures: Figures, address: str) -> Text:
    """Three lines at most: the gateway, the store, and what all engines together do."""
    status = figures.status
    uptime = timedelta(seconds=status.uptime.seconds)
    lines = Text(no_wrap=True, overflow="ellipsis")
    lines.append("gateway  ", FAINT).append(address, STRONG)
    lines.append(f"  version {status.version}, up for {uptime}, {counted(status.live_requests, 'live request')}")
    lines.append(f", {counted(status.live_gateways, 'gateway')}\n" if status.live_gateways else "\n")
    lines.append("store    ", FAINT)
    lines.append("reachable" if status.store_reachable else "NOT REACHABLE", "" if status.store_reachable else BAD)
    lines.append(f", policy revision {status.policy_revision}, ")
    lines.append_text(_ledger_text(status.ledger)).append("\n")
    rate = "-" if figures.tokens_per_s is None else f"{figures.tokens_per_s:,.0f}"
    lines.append("served   ", FAINT).append(f"{rate} tokens/s", STRONG)
    lines.append(f", largest lead {compact(figures.largest_lead)}, {counted(len(figures.teams), 'team')}")
    return lines


def engine_lines(status: pb.SystemStatus) -> Text:
    """What each engine does, and how full its memory is."""
    lines = Text(no_wrap=True, overflow="ellipsis")
    for number, engine in enumerate(status.engines):
        lines.append("\n" if number else "")
        _append_engine(lines, engine)
    return lines


def team_headings(figures: Figures, width: int) -> RenderableType:
    """The line above those of `team_table`."""
    if not figures.teams:
        return Text("no team has asked for anything since the engines began", FAINT)
    shown, table = _fitting_columns(width), _empty_table(width)
    table.add_row("TEAM", *(column.heading for column in shown), style=STRONG)
    return table


def team_table(figures: Figures, width: int, key: SortKey, *, is_reversed: bool) -> RenderableType:
    """A line for each team, with as many columns as there is room for. Long names lose their middle."""
    shown, table = _fitting_columns(width), _empty_table(width)
    for team in ordered(figures.teams, key, is_reversed=is_reversed):
        name = _shortened(short_name(team.team), _team_width(width))
        table.add_row(name, *(column.text(team) for column in shown))
    return table


def frame(figures: Figures, address: str, width: int, key: SortKey) -> RenderableType:
    """All of it."""
    teams = team_headings(figures, width), team_table(figures, width, key, is_reversed=False)
    return Group(heading(figures, address), engine_lines(figures.status), Text(), *teams)


def compact(number: float) -> str:
    """Four digits at most, then thousands: 9999, 10k, 3.4M."""
    if number < 10 * THOUSAND:
        return f"{number:.0f}"
    for suffix in "kMG":
        number /= THOUSAND
        if number < THOUSAND:
            return f"{number:.1f}{suffix}" if number < 10 else f"{number:.0f}{suffix}"
    return f"{number / THOUSAND:.0f}T"


def _empty_table(width: int) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0), width=width)
    table.add_column(width=_team_width(width), no_wrap=True)
    for column in _fitting_columns(width):
        table.add_column(width=column.width, justify="right", no_wrap=True)
    return table


def _team_width(width: int) -> int:
    return width - sum(column.width + 1 for column in _fitting_columns(width))


def _fitting_columns(width: int) -> tuple[Column, ...]:
    shown = COLUMNS
    while shown and width - sum(column.width + 1 for column in shown) < MIN_TEAM_WIDTH:
        last = max(column.rank for column in shown)
        shown = tuple(column for column in shown if column.rank < last)
    return shown


def _shortened(name: str, width: int) -> str:
    if len(name) <= width:
        return name
    head = (width - 1) // 2
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"


def _ledger_text(ledger: pb.LedgerStatus) -> Text:
    wait = "waits" if ledger.waiting_events == 1 else "wait"
    text = Text(f"{counted(ledger.waiting_events, 'event')} {wait} for the ledger")
    if ledger.dropped_events or ledger.damaged_bytes:
        lost = f"{counted(ledger.dropped_events, 'event')}, {ledger.damaged_bytes} bytes of the spool"
        text.append(f"; LOST: {lost}", BAD)
    return text


def _append_engine(lines: Text, engine: pb.EngineStatus) -> None:
    lines.append("engine   ", FAINT)
    if not engine.reachable:
        lines.append(f"{engine.address}: ").append("NOT REACHABLE", BAD)
        return
    scheduling = policy_text(engine.scheduling_policy, dict(engine.scheduling_options))
    preemption = policy_text(engine.preemption_policy, dict(engine.preemption_options))
    lines.append(engine.model, STRONG).append(f"  policy {scheduling}, preemption {preemption}")
    lines.append("  DRAINING" if engine.draining else "", BAD)
    if engine.policy_fault:
        lines.append("\n         ").append(f"POLICY REPLACED by the order of arrival: {engine.policy_fault}", BAD)
    if engine.lost_steps:
        lines.append("\n         ").append(lost_steps_text(engine.lost_steps, engine.requeues), BAD)
    lines.append(
        f"\n         {engine.running} running, {engine.waiting} waiting, {engine.paused} paused, "
        f"{engine.swapped} swapped, {engine.swapping} moving\n         "
    )
    _append_blocks(lines, engine)
    lines.append(
        f"\n         steps of {engine.mean_step_ms:.1f} ms; {counted(engine.num_preemptions, 'preemption')},"
        f" {counted(engine.num_swaps, 'swap')}, {counted(engine.num_pauses, 'pause')}"
    )
    savings = _savings_text(engine)
    lines.append(f"\n         {savings}" if savings else "")


def _savings_text(engine: pb.EngineStatus) -> str:
    """What the prefix cache and guesses do; empty where the engine has neither."""
    parts = []
    if engine.prefix_caching:
        num_prompt = engine.cached_prompt_tokens + engine.computed_prompt_tokens
        found = part_text(engine.cached_prompt_tokens, num_prompt)
        kept, evicted = engine.cached_device_blocks + engine.cached_host_blocks, engine.evicted_blocks
        parts.append(f"prefix cache {found} found, {compact(kept)} kept, {compact(evicted)} evicted")
    if engine.speculation not in ("", "off"):
        right = part_text(engine.accepted_draft_tokens, engine.drafted_tokens)
        parts.append(f"drafts {right} of {compact(engine.drafted_tokens)} right")
    return "; ".join(parts)


def _append_blocks(lines: Text, engine: pb.EngineStatus) -> None:
    """A bar of the device's pool: in use, being copied, free."""
    total, copied = engine.num_device_blocks, engine.fenced_device_blocks
    used = total - engine.free_device_blocks
    filled = round(BAR_WIDTH * used / total) if total else 0
    moving = min(filled, -(-BAR_WIDTH * copied // total)) if total else 0
    lines.append("█" * (filled - moving), IN_USE).append("▓" * moving, COPIED)
    lines.append("░" * (BAR_WIDTH - filled), FAINT)
    lines.append(f" {used} of {total} blocks of {engine.block_size}")
    lines.append(f", {copied} copied" if copied else "")
    if engine.num_host_blocks:
        lines.append(f"; host {engine.num_host_blocks - engine.free_host_blocks} of {engine.num_host_blocks}")
