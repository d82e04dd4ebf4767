"""What the demo shows: the tenants live, and at the end what each policy did to them."""

from collections import abc

from rich import box
from rich.console import Console
from rich.table import Table

from gateway.cli.demo.sizes import BATCH, CHAT, Sizes
from gateway.cli.demo.traffic import Experience, Run


def live_table(policy: str, run: Run) -> Table:
    """How the run stands, a line for each tenant."""
    title = f"policy {policy}, {run.elapsed_s:.0f} s"
    table = Table("TENANT", box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for heading in ("WAITING", "RUNNING", "DONE", "TOKENS SERVED", "TTFT p50", "TTFT p95"):
        table.add_column(heading, justify="right")
    for tenant, seen in run.experiences.items():
        table.add_row(tenant, *figures(seen))
    return table


def live_lines(policy: str, run: Run) -> list[str]:
    """The same for a log."""
    names = ("waiting", "running", "done", "tokens", "ttft p50", "ttft p95")
    return [
        f"{policy} {run.elapsed_s:5.0f} s  {tenant:<5}  "
        + "  ".join(f"{name} {figure}" for name, figure in zip(names, figures(seen), strict=True))
        for tenant, seen in run.experiences.items()
    ]


def figures(seen: Experience) -> tuple[str, ...]:
    counts = (seen.num_waiting, seen.num_running, seen.num_finished, seen.num_tokens)
    return (*map(str, counts), seconds(seen.ttft_s(0.5)), seconds(seen.ttft_s(0.95)))


def seconds(length_s: float | None) -> str:
    return "-" if length_s is None else f"{length_s:.2f} s"


def print_plan(console: Console, sizes: Sizes) -> None:
    """What is about to happen."""
    long, short = sizes.long, sizes.short
    console.print(
        f"\nTenant {BATCH} sends {sizes.num_long} requests of {long.num_prompt_tokens} prompt and"
        f" {long.num_output_tokens} output tokens, all at once.\n"
        f"Tenant {CHAT} sends {sizes.num_short} of {short.num_prompt_tokens} and {short.num_output_tokens},"
        " one a second. Both have the same weight.\n"
        f"The KV pool has room for {sizes.num_pool_tokens} tokens, {sizes.num_pool_tokens // long.num_tokens} of the"
        " long requests. The same traffic runs twice."
    )


def print_report(console: Console, runs: abc.Mapping[str, Run]) -> None:
    """The runs side by side."""
    table = Table("", *runs, box=box.SIMPLE_HEAD, title="The same traffic", title_justify="left", pad_edge=False)
    for label, text in ROWS:
        table.add_row(label, *(text(run) for run in runs.values()))
    console.print()
    console.print(table)
    console.print("pauses: times that a request gave way and kept its blocks; swaps: times that its blocks went to the")
    console.print(
        "host and came back; lost: tokens that were computed again. Blocks run short for everybody, so there are"
    )
    console.print("some under each policy: they differ in who gives way to whom.")


def print_verdict(console: Console, runs: abc.Mapping[str, Run]) -> None:
    """What the second of the two policies changed, in a sentence."""
    (before, first), (after, second) = runs.items()
    waits_s = [run.experiences[CHAT].ttft_s(0.5) or 0.0 for run in (first, second)]
    console.print(
        f"\nWith {after} half of {CHAT}'s requests had their first token within {waits_s[1]:.2f} s, with {before}"
        f" within {waits_s[0]:.2f} s; {BATCH} got {batch_rate(second):.0f} tokens a second instead of"
        f" {batch_rate(first):.0f}."
    )
    console.print(
        f"Until {BATCH} was done, {part_beside_flood(second):.0%} of all tokens were {CHAT}'s with {after},"
        f" {part_beside_flood(first):.0%} with {before}."
    )
    console.print("One run of each: other work on this machine shows in the figures.")


def engine_text(run: Run, tenant: str) -> str:
    """`12 / 3 / 0`: pauses, swaps and lost tokens of a tenant; unknown where the engine did not tell."""
    figures = run.figures.get(tenant)
    return "-" if figures is None else f"{figures.num_pauses} / {figures.num_swaps_out} / {figures.recomputed_tokens}"


def batch_rate(run: Run) -> float:
    """Tokens of the flood, prompt and output, per second until it was served."""
    seen = run.experiences[BATCH]
    return seen.num_tokens / seen.finished_s if seen.finished_s else 0.0


def part_beside_flood(run: Run) -> float:
    """Of all tokens that were served until the flood was, the part that went to the other tenant, 0 to 1."""
    num_tokens = run.num_tokens_beside_flood + run.experiences[BATCH].num_tokens
    return run.num_tokens_beside_flood / num_tokens if num_tokens else 0.0


def total_s(run: Run) -> float:
    return max(seen.finished_s for seen in run.experiences.values())


ROWS: tuple[tuple[str, abc.Callable[[Run], str]], ...] = (
    (f"{CHAT}: first token after, median", lambda run: seconds(run.experiences[CHAT].ttft_s(0.5))),
    (f"{CHAT}: first token after, p95", lambda run: seconds(run.experiences[CHAT].ttft_s(0.95))),
    (f"{CHAT}: first token after, longest", lambda run: seconds(run.experiences[CHAT].ttft_s(1.0))),
    (f"{CHAT}: pauses / swaps / lost", lambda run: engine_text(run, CHAT)),
    (f"{BATCH}: pauses / swaps / lost", lambda run: engine_text(run, BATCH)),
    (f"{BATCH}: first token after, median", lambda run: seconds(run.experiences[BATCH].ttft_s(0.5))),
    (f"{BATCH}: first token after, p95", lambda run: seconds(run.experiences[BATCH].ttft_s(0.95))),
    (f"{BATCH}: all done after", lambda run: seconds(run.experiences[BATCH].finished_s)),
    (f"{BATCH}: tokens per second", lambda run: f"{batch_rate(run):.0f}"),
    ("everything done after", lambda run: seconds(total_s(run))),
)
