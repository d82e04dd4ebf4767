"""`evenflow status`: is everything up, what does the engine do, and for whom."""

from collections import abc
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from rich.table import Table

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.command import Admin, admin_command
from gateway.cli.output import OutputFormat, OutputOption, new_table, print_data, stdout, to_data
from gateway.settings import WILDCARD_HOSTS
from gateway.words import counted, lost_steps_text, part_text, policy_text, short_name

MAX_TENANTS = 50
NOW_HEADINGS = ("TEAM", "WEIGHT", "SHARE", "FAIR", "LEAD", "RUNNING", "WAITING", "PAUSED", "SWAPPED")
NOW_LEGEND = (
    "share: of the work that all teams were served since the engine began;\n"
    "fair: what the weights give now, among the teams that have work or were\n"
    "served in the last five minutes;\n"
    "lead: work by weight ahead of the least served sibling that has work"
)
TOTAL_HEADINGS = ("TEAM", "PROMPT", "OUTPUT", "LOST", "BORROWED", "WAITED", "PAUSES", "SWAPS")
TOTAL_LEGEND = (
    "since the engine began, in tokens; prompt: computed, without what the prefix\n"
    "cache had; lost: computed again after a preemption; borrowed: served while\n"
    "others had precedence and no use for it"
)
SAVED_HEADINGS = ("TEAM", "PROMPTS", "FOUND", "KEPT", "DRAFTS", "RIGHT")
SAVED_LEGEND = (
    "since the engine began, in tokens; found: the part of the prompts that the\n"
    "prefix cache had; kept: its blocks that nobody uses now; right: the part of\n"
    "the tokens guessed ahead that became output"
)


@admin_command
def status(admin: Admin, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show the gateway, the engines, the database and the tenants at work."""
    report = admin.call(admin.stub.GetSystemStatus, pb.GetSystemStatusRequest())
    if output is not OutputFormat.TABLE:
        print_data(to_data(report), output)
        return
    console = stdout()
    parts = Table(box=None, show_header=False, pad_edge=False)
    parts.add_row("gateway", f"{admin.connection.address}, {_gateway_text(report)}")
    parts.add_row("store", _store_text(report))
    parts.add_row("ledger", _ledger_text(report.ledger))
    if report.http_url:
        parts.add_row("http", _http_text(report.http_url, admin.connection.address))
    if report.metrics_address:
        parts.add_row("metrics", f"http://{report.metrics_address}/metrics")
    for engine in report.engines:
        parts.add_row("engine", "\n".join(_engine_lines(engine)))
    console.print(parts)
    for engine in report.engines:
        for table, legend in _tenant_tables(engine):
            console.print(table)
            console.print(legend)


def _gateway_text(report: pb.SystemStatus) -> str:
    uptime = timedelta(seconds=report.uptime.seconds)
    return f"version {report.version}, up for {uptime}, {report.live_requests} live requests"


def _http_text(url: str, reached: str) -> str:
    """A door that listens everywhere is told at the host that this command has `reached`."""
    for anywhere in WILDCARD_HOSTS:
        url = url.replace(f"//{anywhere}:", f"//{reached.rpartition(':')[0]}:")
    return f"{url}, the base URL for clients of OpenAI's API"


def _store_text(report: pb.SystemStatus) -> str:
    reachable = "reachable" if report.store_reachable else "NOT REACHABLE"
    return f"{reachable}, schema {report.schema_revision or 'unknown'}, policy revision {report.policy_revision}"


def _ledger_text(ledger: pb.LedgerStatus) -> str:
    wait = "waits" if ledger.waiting_events == 1 else "wait"
    text = f"{counted(ledger.waiting_events, 'event')} {wait} for the store"
    if ledger.waiting_events:
        text += f", the oldest for {ledger.oldest.ToMilliseconds() / 1000:.1f} s"
    if ledger.dropped_events or ledger.damaged_bytes:
        text += f"; LOST: {counted(ledger.dropped_events, 'event')}, {ledger.damaged_bytes} bytes of the spool"
    return text


def _engine_lines(engine: pb.EngineStatus) -> list[str]:
    if not engine.reachable:
        return [f"{engine.address}: NOT REACHABLE"]
    scheduling = policy_text(engine.scheduling_policy, dict(engine.scheduling_options))
    preemption = policy_text(engine.preemption_policy, dict(engine.preemption_options))
    lines = [
        f"{engine.model} at {engine.address}{', draining' if engine.draining else ''}",
        f"policy {scheduling}, preemption {preemption}",
        _requests_text(engine),
        _pools_text(engine),
        f"{counted(engine.num_steps, 'step')} of {engine.mean_step_ms:.1f} ms,"
        f" {counted(engine.num_preemptions, 'preemption')}, {counted(engine.num_swaps, 'swap')},"
        f" {counted(engine.num_pauses, 'pause')}",
        _prices_text(engine),
        _cache_text(engine),
        _drafts_text(engine),
    ]
    if engine.lost_steps:
        lines.append(lost_steps_text(engine.lost_steps, engine.requeues))
    if engine.dropped_usage:
        lines.append(
            f"USAGE LOST of {engine.dropped_usage} requests that no gateway has acknowledged,"
            f" {engine.unacknowledged_usage} are kept"
        )
    if engine.metrics_address:
        lines.append(f"metrics http://{engine.metrics_address}/metrics")
    if engine.policy_fault:
        lines.insert(2, f"POLICY REPLACED by the order of arrival: {engine.policy_fault}")
    return lines


def _requests_text(engine: pb.EngineStatus) -> str:
    numbers = {
        "running": engine.running,
        "waiting": engine.waiting,
        "paused": engine.paused,
        "swapped": engine.swapped,
        "changing pools": engine.swapping,
    }
    return ", ".join(f"{number} {state}" for state, number in numbers.items())


def _pools_text(engine: pb.EngineStatus) -> str:
    used = engine.num_device_blocks - engine.free_device_blocks
    text = f"{used} of {engine.num_device_blocks} blocks of {engine.block_size} tokens in use"
    if engine.fenced_device_blocks:
        text += f", {engine.fenced_device_blocks} being copied"
    if engine.num_host_blocks:
        text += f"; {engine.num_host_blocks - engine.free_host_blocks} of {engine.num_host_blocks} on the host"
    return text


def _prices_text(engine: pb.EngineStatus) -> str:
    prices = engine.preemption_prices
    swap = f"{_ms(prices.swap)} out and in" if prices.HasField("swap") else "no host pool"
    how = {"auto": "the cheaper is taken", "swap": "always swapped", "recompute": "always computed again"}
    return (
        f"preempting 1000 tokens costs: swap {swap}, compute again {_ms(prices.recompute)}"
        f" ({how.get(engine.preemption_mode, engine.preemption_mode)}{'' if prices.measured else ', not measured yet'})"
    )


def _cache_text(engine: pb.EngineStatus) -> str:
    if not engine.prefix_caching:
        return "prefix cache off"
    num_prompt_tokens = engine.cached_prompt_tokens + engine.computed_prompt_tokens
    kept = f"{counted(engine.cached_device_blocks, 'block')} kept"
    if engine.num_host_blocks:
        kept += f" and {engine.cached_host_blocks} on the host"
    found = part_text(engine.cached_prompt_tokens, num_prompt_tokens)
    return (
        f"prefix cache: {found} of {counted(num_prompt_tokens, 'prompt token')} found, {kept},"
        f" {engine.evicted_blocks} evicted"
    )


def _drafts_text(engine: pb.EngineStatus) -> str:
    if engine.speculation in ("", "off"):
        return "speculation off"
    model = f" by {engine.draft_model}" if engine.draft_model else ""
    right = part_text(engine.accepted_draft_tokens, engine.drafted_tokens)
    return f"speculation {engine.speculation}{model}: {right} of {counted(engine.drafted_tokens, 'draft')} right"


def _ms(length: Duration) -> str:
    return f"{length.ToMicroseconds() / 1000:.1f} ms"


def _tenant_tables(engine: pb.EngineStatus) -> list[tuple[Table, str]]:
    """What teams have now and what they have had, each with its legend; those first that were served most.

    Empty where there is no team.
    """
    shown = sorted(engine.tenants, key=lambda tenant: -tenant.served_work)[:MAX_TENANTS]
    if not shown:
        return []
    now, total = new_table(*NOW_HEADINGS), new_table(*TOTAL_HEADINGS)
    for tenant in shown:
        now.add_row(short_name(tenant.team), *_now_cells(tenant))
        total.add_row(short_name(tenant.team), *_total_cells(tenant))
    num_left_out = len(engine.tenants) - len(shown)
    left_out = f"{num_left_out} teams that were served less are not shown\n" if num_left_out else ""
    tables = [(now, NOW_LEGEND), (total, left_out + TOTAL_LEGEND)]
    return [*tables, (_saved_table(shown), SAVED_LEGEND)] if _saves(engine) else tables


def _saved_table(tenants: abc.Iterable[pb.TenantStatus]) -> Table:
    saved = new_table(*SAVED_HEADINGS)
    for tenant in tenants:
        num_prompt_tokens = tenant.cached_prompt_tokens + tenant.prefill_tokens
        saved.add_row(
            short_name(tenant.team),
            str(num_prompt_tokens),
            part_text(tenant.cached_prompt_tokens, num_prompt_tokens),
            str(tenant.cached_blocks),
            str(tenant.drafted_tokens),
            part_text(tenant.accepted_draft_tokens, tenant.drafted_tokens),
        )
    return saved


def _saves(engine: pb.EngineStatus) -> bool:
    """Whether there is anything to be found, or guessed ahead."""
    return engine.prefix_caching or engine.speculation not in ("", "off")


def _now_cells(tenant: pb.TenantStatus) -> list[str]:
    shares = f"{tenant.share:.1%}", f"{tenant.weight_share:.1%}"
    numbers = tenant.running, tenant.waiting, tenant.paused, tenant.swapped
    return [f"{tenant.weight:g}", *shares, f"{tenant.lead:.0f}", *map(str, numbers)]


def _total_cells(tenant: pb.TenantStatus) -> list[str]:
    tokens = tenant.prefill_tokens, tenant.output_tokens, tenant.recomputed_tokens, tenant.borrowed_tokens
    waited = f"{tenant.wait.ToMilliseconds() / 1000:.1f} s"
    return [*map(str, tokens), waited, str(tenant.num_pauses), str(tenant.num_swaps_out)]
