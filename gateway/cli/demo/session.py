"""The course of the demo on a stack of its own: tenants, calibration, a run for each policy, the report."""

import asyncio

import grpc
from rich.live import Live

from evenflow.inference.v1.generation_pb2_grpc import GenerationServiceStub
from evenflow.inference.v1.model_pb2 import ListModelsRequest
from evenflow.inference.v1.model_pb2_grpc import ModelServiceStub
from gateway.cli.demo.calibrate import measure_speed
from gateway.cli.demo.screen import live_lines, live_table, print_plan, print_report, print_verdict
from gateway.cli.demo.sizes import CHAT, full_sizes, sizes_for
from gateway.cli.demo.tenants import create_tenants, engine_figures
from gateway.cli.demo.traffic import Clients, Run
from gateway.cli.errors import CliError, cli_error
from gateway.cli.running import Session
from gateway.private_files import read_text

# Each with the victims that belong to it.
POLICIES = {"fcfs": "latest_arrival", "fair": "over_served"}
LINE_INTERVAL_S = 5.0
REFRESH_PER_SECOND = 4


async def play(session: Session, *, full: bool) -> None:
    """The demo has been shown from beginning to end. Raises CliError if a request was refused or a part failed."""
    with session.board:
        installation = await session.stack.bring_up()
    address, admin_key = session.stack.settings.address, read_text(installation.admin_key_file)
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            await session.supervisor.guard(_play_on(session, channel, admin_key, full=full))
        except grpc.aio.AioRpcError as error:
            raise cli_error(error, address) from error


async def _play_on(session: Session, channel: grpc.aio.Channel, admin_key: str, *, full: bool) -> None:
    console = session.console
    metadata = await create_tenants(channel, admin_key)
    models = await ModelServiceStub(channel).ListModels(ListModelsRequest(), metadata=metadata[CHAT])
    clients = Clients(GenerationServiceStub(channel), metadata, models.models[0].vocabulary_size)
    sizes = full_sizes() if full else sizes_for(await measure_speed(clients))
    print_plan(console, sizes)
    runs = {}
    for policy, preemption in POLICIES.items():
        console.print(f"\nThe engine starts again with --scheduling-policy {policy}.")
        with session.board:
            flags = "--scheduling-policy", policy, "--preemption-policy", preemption
            await session.stack.replace_engine((*sizes.engine_flags, *flags))
        runs[policy] = Run(clients, sizes)
        await _watched(session, policy, runs[policy])
        runs[policy].figures = await engine_figures(channel, admin_key)
    print_report(console, runs)
    failures = [text for run in runs.values() for seen in run.experiences.values() for text in seen.failures]
    if failures:
        raise CliError(f"{len(failures)} requests failed, the first one: {failures[0]}")
    print_verdict(console, runs)


async def _watched(session: Session, policy: str, run: Run) -> None:
    """`run` has been played and shown."""
    playing = asyncio.create_task(run.play())
    try:
        if session.console.is_terminal:
            screen = Live(
                console=session.console,
                get_renderable=lambda: live_table(policy, run),
                refresh_per_second=REFRESH_PER_SECOND,
            )
            with screen:
                await playing
        else:
            while not playing.done():
                await asyncio.wait((playing,), timeout=LINE_INTERVAL_S)
                for line in live_lines(policy, run):
                    session.console.print(line)
            playing.result()
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
