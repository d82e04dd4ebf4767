"""`evenflow profile`: what a step takes on this machine, for the simulator."""

import platform
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from engine.commands.profiling.profile import Profile, profile
from engine.commands.progress import loading_progress
from engine.errors import StartError
from engine.model.errors import ModelError
from engine.settings import read_settings

if TYPE_CHECKING:
    from engine.server.backend import Backend

EXIT_SETTINGS = 2
MAX_RESIDUAL = 0.15  # above, a simulation on this line misleads

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, subcommand_metavar="")


@app.callback(invoke_without_command=True)
def run_profile(
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write the line here, for evenflow sim --costs.")
    ] = None,
    model: Annotated[Path | None, typer.Option("--model", metavar="PATH", help="Unset: the installed model.")] = None,
    device: Annotated[str, typer.Option("--device", metavar="auto|cpu|cuda")] = "auto",
    dtype: Annotated[str, typer.Option("--dtype", metavar="auto|float32|bfloat16")] = "auto",
    num_threads: Annotated[int | None, typer.Option("--num-threads", min=1)] = None,
    max_num_seqs: Annotated[int, typer.Option("--max-num-seqs", min=1)] = 64,
    max_num_batched_tokens: Annotated[int | None, typer.Option("--max-num-batched-tokens", min=1)] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="For the measurements.")] = 60.0,
) -> None:
    """Measure steps of many shapes on the live runner, fit the cost line, and print how well it fits."""
    backend = _load(
        {
            "listen": "127.0.0.1:0",  # nobody listens
            "model": model,
            "device": device,
            "dtype": dtype,
            "num_threads": num_threads,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
        }
    )
    found = _measure(backend, seconds)
    _show(found)
    if output is not None:
        _write(found, output)


def _load(flags: dict[str, object]) -> "Backend":
    """Exits, with one line that says why, where the engine cannot be loaded so."""
    # Here, so that `evenflow --help` does not wait for gRPC.
    from engine.server.backend import load_backend

    try:
        settings = read_settings(flags)
        with loading_progress(str(flags["model"] or "the default model")) as on_loading:
            return load_backend(settings, on_loading)
    except (StartError, ModelError) as error:
        typer.echo(f"evenflow profile: {error}", err=True)
        raise typer.Exit(EXIT_SETTINGS) from None


def _measure(backend: "Backend", budget_s: float) -> Profile:
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring")

        def show(num_done: int, num_total: int) -> None:
            bar.update(task, completed=num_done, total=num_total)

        return profile(backend, budget_s=budget_s, on_progress=show)


def _show(found: Profile) -> None:
    console = Console()
    table = Table(title=found.line.name, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD)
    for column in ("step", "measured", "line", "residual"):
        table.add_column(column, justify="left" if column == "step" else "right")
    for each in found.measurements:
        cells = (f"{each.step_ns / 1e6:,.2f} ms", f"{each.fitted_ns / 1e6:,.2f} ms", f"{each.residual:+.1%}")
        table.add_row(str(each.shape), *cells)
    console.print(table)
    for name, value in found.line.coefficients().items():
        console.print(f"  {name:22} {value:>16,.1f}")
    if warning := poor_fit(found):
        typer.echo(f"evenflow profile: {warning}", err=True)


def poor_fit(found: Profile) -> str | None:
    """What to tell where the line is far from what was measured."""
    residuals = [abs(each.residual) for each in found.measurements]
    num_far = sum(residual > MAX_RESIDUAL for residual in residuals)
    if not num_far:
        return None
    return (
        f"the fit is poor: {num_far} of {len(residuals)} steps are off by more than {MAX_RESIDUAL:.0%}, the worst by"
        f" {max(residuals):.0%}; measure again while nothing else runs"
    )


def _write(found: Profile, path: Path) -> None:
    content = {
        "name": found.line.name,
        "machine": {"processor": platform.processor() or platform.machine(), "system": platform.system()},
        "coefficients": found.line.coefficients(),
        "measurements": [
            {"step": str(each.shape), "step_ns": each.step_ns, "fitted_ns": each.fitted_ns}
            for each in found.measurements
        ],
    }
    try:
        path.write_text(dumps(content, indent=1) + "\n")
    except OSError as error:
        typer.echo(f"evenflow profile: {path} cannot be written: {error.strerror}", err=True)
        raise typer.Exit(EXIT_SETTINGS) from None
