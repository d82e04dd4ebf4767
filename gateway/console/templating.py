"""Templates to pages: Jinja2 with escaping everywhere, and the few filters that make figures readable.

Rendering happens on a thread: a long table takes longer than streams should have to wait.
"""

import asyncio
from collections import abc
from datetime import UTC, datetime

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from jinja2 import BaseLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.console.key_forms import state_of
from gateway.console.statics import Statics
from gateway.console.words import NOTHING
from gateway.words import counted, lost_steps_text, number, policy_text, short_name

NONE = Markup('<span class="none">{}</span>').format(NOTHING)
UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


class Templates:
    """The templates of `gateway/console/templates`, unless a test has others."""

    def __init__(self, statics: Statics, loader: BaseLoader | None = None) -> None:
        self._environment = Environment(
            loader=loader or PackageLoader("gateway.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals.update(
            static=statics.url, none_shown=NONE, lost_steps_text=lost_steps_text, policy_text=policy_text
        )
        self._environment.filters.update(
            clock=clock,
            counted=counted,
            duration=duration,
            key_state=state_of,
            short_name=short_name,
            last=last_segment,
            moment=moment,
            number=number,
            percent=percent,
            size=size,
            state_word=state_word,
            weight=weight,
        )

    async def render(self, name: str, context: abc.Mapping[str, object]) -> str:
        template = self._environment.get_template(name)
        return await asyncio.to_thread(template.render, context)

    async def page(self, name: str, context: abc.Mapping[str, object], status: int = 200) -> HTMLResponse:
        return HTMLResponse(await self.render(name, context), status)


def percent(share: float) -> str:
    """`12.3 %` of a share of 1."""
    return f"{share * 100:.1f} %"


def size(num_bytes: float) -> str:
    """In binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def duration(length: float | Duration) -> str:
    """`340 ms`, `2.5 s`, `3 min 20 s`, `2 d 4 h`; a number is in seconds."""
    length_s = length if isinstance(length, int | float) else length.ToNanoseconds() / 1e9
    if length_s < 1:
        return f"{length_s * 1000:.0f} ms"
    if length_s < 60:
        return f"{length_s:.1f}".removesuffix(".0") + " s"
    whole, told = int(length_s), []
    for unit_s, unit in UNITS:
        count, whole = divmod(whole, unit_s)
        if count:
            told.append(f"{count} {unit}")
    return " ".join(told[:2])


def moment(stamp: Timestamp | datetime | None) -> str:
    """`2026-11-30 10:49 UTC`, which a script may word as the reader's own time; a dash for none."""
    if stamp is None or (isinstance(stamp, Timestamp) and not stamp.ByteSize()):
        return NONE
    at = stamp.ToDatetime(UTC) if isinstance(stamp, Timestamp) else stamp.astimezone(UTC)
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(timespec="seconds"), f"{at:%Y-%m-%d %H:%M} UTC")


def clock(at: datetime) -> str:
    """`10:49:07 UTC`, of a moment today."""
    at = at.astimezone(UTC)
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(timespec="seconds"), f"{at:%H:%M:%S} UTC")


def last_segment(name: str) -> str:
    """`search` of `organizations/acme/teams/search`."""
    return name.rpartition("/")[2]


def weight(value: float | None) -> str:
    """A dash where nobody knows it."""
    return NONE if value is None else number(value)


def state_word(value: pb.State.ValueType) -> str:
    """`suspended`."""
    return pb.State.Name(value).removeprefix("STATE_").lower()
