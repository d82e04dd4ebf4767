"""`evenflow status`: is everything up, what does the engine do, and for whom."""

from datetime import timedelta

from rich.table import Table

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.command import Admin, admin_command
from gateway.cli.output import OutputFormat, OutputOption, new_table, print_data, stdout, to_data
from gateway.cli.references import short


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
    for engine in report.engines:
        parts.add_row("engine", _engine_text(engine))
    console.print(parts)
    for engine in report.engines:
        if engine.tenants:
            console.print(_tenant_table(engine))


def _gateway_text(report: pb.SystemStatus) -> str:
    uptime = timedelta(seconds=report.uptime.seconds)
    return f"version {report.version}, up for {uptime}, {report.live_requests} live requests"


def _store_text(report: pb.SystemStatus) -> str:
    reachable = "reachable" if report.store_reachable else "NOT REACHABLE"
    return f"{reachable}, schema {report.schema_revision or 'unknown'}, policy revision {report.policy_revision}"


def _engine_text(engine: pb.EngineStatus) -> str:
    if not engine.reachable:
        return f"{engine.address}: NOT REACHABLE"
    used = engine.num_device_blocks - engine.free_device_blocks
    return "\n".join(
        (
            f"{engine.model} at {engine.address}{', draining' if engine.draining else ''}",
            f"policy {engine.scheduling_policy}, preemption {engine.preemption_policy}",
            f"{engine.running} running, {engine.waiting} waiting, {engine.paused} paused, {engine.swapped} swapped",
            f"{used} of {engine.num_device_blocks} blocks of {engine.block_size} tokens in use",
            f"{engine.num_steps} steps of {engine.mean_step_ms:.1f} ms, {engine.num_preemptions} preemptions",
        )
    )


def _tenant_table(engine: pb.EngineStatus) -> Table:
    table = new_table("TEAM", "WEIGHT", "RUNNING", "WAITING", "PROMPT", "OUTPUT", "RECOMPUTED", "STANDING")
    table.caption = "prompt, output, recomputed: tokens since the engine began"
    for tenant in engine.tenants:
        figures = (
            tenant.running,
            tenant.waiting,
            tenant.prefill_tokens,
            tenant.output_tokens,
            tenant.recomputed_tokens,
        )
        table.add_row(short(tenant.team), f"{tenant.weight:g}", *map(str, figures), f"{tenant.standing:.0f}")
    return table
