"""What the console is made over: the gateway's own parts, as its composition root passes them."""

import asyncio
from dataclasses import dataclass, field

from gateway.admin.servicer import AdminServicer
from gateway.admission import Admission
from gateway.auth import Authenticator
from gateway.console.charts import Chart
from gateway.console.live import LiveStreams
from gateway.console.overview.newest import Newest
from gateway.console.overview.sampler import Sampler
from gateway.console.overview.view import Overview
from gateway.console.sign_in.login_limits import LoginLimits
from gateway.console.sign_in.session_ends import SessionEnds
from gateway.pepper import PepperSource
from gateway.settings import GatewaySettings


@dataclass(frozen=True, slots=True)
class Parts:
    """Sessions are signed with keys derived from `peppers`. Whoever checks the whole record holds `checking`."""

    settings: GatewaySettings
    peppers: PepperSource
    authenticator: Authenticator
    admin: AdminServicer
    admission: Admission
    sampler: Sampler
    session_ends: SessionEnds
    login_limits: LoginLimits
    streams: LiveStreams = field(default_factory=LiveStreams)
    platform_overview: Newest[Overview] = field(default_factory=Newest)
    platform_charts: Newest[dict[str, Chart]] = field(default_factory=Newest)
    checking: asyncio.Lock = field(default_factory=asyncio.Lock)
