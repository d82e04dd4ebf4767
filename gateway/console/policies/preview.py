"""The preview of a policy: recent traffic and denials under it, told while the simulator is at it."""

import asyncio
import time
from collections import abc
from dataclasses import dataclass
from datetime import timedelta

from google.protobuf.field_mask_pb2 import FieldMask
from markupsafe import escape

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.servicer import AdminServicer
from gateway.admin.what_if.engine import TIME_LIMIT_S
from gateway.admin.what_if.progress import Progress, Stage, followed_by
from gateway.console.policies.preview_view import PreviewView, counts_text, view_of
from gateway.console.progressive import Emit, ProgressivePage
from gateway.console.refusals import Trouble
from gateway.console.visit import Visit
from gateway.interceptors.errors import refusal_of
from gateway.telemetry import RpcRecord, current_rpc

TEMPLATE = "preview.html"
HERE = "<!-- the work tells of itself here -->"
"""Where the template is cut: before it is what is sent first, behind it what is sent last."""

TICK_S = 5.0
WINDOWS = {
    "1h": ("the last hour", timedelta(hours=1)),
    "6h": ("the last 6 hours", timedelta(hours=6)),
    "24h": ("the last 24 hours", timedelta(hours=24)),
    "7d": ("the last 7 days", timedelta(days=7)),
}
DEFAULT_WINDOW = "24h"


@dataclass(frozen=True, slots=True)
class Preview:
    """What is tried. `window` is one of WINDOWS; `context` is what the page shows beside the result."""

    policy: pb.QuotaPolicy
    node: str
    window: str
    context: abc.Mapping[str, object]


async def preview_page(visit: Visit, preview: Preview) -> ProgressivePage:
    """A page that ends with what the simulator has found, or with why it has found nothing."""
    opening = await visit.render(TEMPLATE, 200, view=None, trouble=None, **preview.context)
    head, _, _ = bytes(opening.body).decode().partition(HERE)

    async def work(emit: Emit) -> None:
        view, trouble = await _told(visit, preview, emit)
        closing = await visit.render(TEMPLATE, 200, view=view, trouble=trouble, **preview.context)
        await emit(bytes(closing.body).decode().partition(HERE)[2])

    return ProgressivePage(opening, head, work)


async def _told(visit: Visit, preview: Preview, emit: Emit) -> tuple[PreviewView | None, Trouble | None]:
    """The result, once every stage on the way has been told of."""
    steps: asyncio.Queue[Progress | None] = asyncio.Queue()
    async with asyncio.TaskGroup() as group:
        with followed_by(steps.put_nowait):
            simulating = group.create_task(_simulated(visit, preview))
        simulating.add_done_callback(lambda _: steps.put_nowait(None))
        await _tell_steps(emit, steps, WINDOWS[preview.window][0])
        return await simulating


async def _simulated(visit: Visit, preview: Preview) -> tuple[PreviewView | None, Trouble | None]:
    entry = pb.PolicyEntry(quota_policy=preview.policy, update_mask=FieldMask(paths=["*"]))
    request = pb.SimulateQuotaPoliciesRequest(entries=[entry])
    request.window.FromTimedelta(WINDOWS[preview.window][1])
    try:
        return view_of(await visit.call(AdminServicer.SimulateQuotaPolicies, request), preview.node), None
    except Exception as error:  # noqa: BLE001 - the edge: the page has begun, so it has to say what happened
        record = current_rpc() or RpcRecord(TEMPLATE, "")
        return None, Trouble.of(refusal_of(error, record), record.request_id)


async def _tell_steps(emit: Emit, steps: "asyncio.Queue[Progress | None]", window: str) -> None:
    """A line for every stage, and within it how long it has taken so far."""
    began_s = time.monotonic()
    while True:
        try:
            async with asyncio.timeout(TICK_S):
                step = await steps.get()
        except TimeoutError:
            await emit(f" · {time.monotonic() - began_s:.0f} s")
            continue
        if step is None:
            return
        await emit(f"<li>{escape(_step_text(step, window))}")


def _step_text(step: Progress, window: str) -> str:
    match step.stage:
        case Stage.WAITING:
            return "Waiting until another simulation has ended: one runs at a time"
        case Stage.READING:
            return f"Reading the requests and refusals of {window}"
        case Stage.CURRENT:
            counts = counts_text(step.num_requests, step.num_denials)
            return f"{counts}. Presenting them under the policies of now, for {TIME_LIMIT_S:.0f} s at most"
        case Stage.PROPOSED:
            return f"Presenting them under the changed policy, for {TIME_LIMIT_S:.0f} s at most"
