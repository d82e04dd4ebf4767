"""What statements take and return: frozen values, never rows.

A record is an identity, the `settings` that an administrator chose, and what the store knows about it. An etag names a
revision of one record. Knows no SQL and no protocol.
"""

from collections import abc
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network
from typing import TypeVar
from uuid import UUID

from gateway.quota_terms import Calendar, Mode
from gateway.store.enums import Dimension, KeyScope, ReservationMode, State, StoreLossAction

ANY = "-"  # in the parent of a list: every organization, every team
DEFAULT_CLASS = "default"
CACHE_SALT_BYTES = 32
DEFAULT_POLICY = "default"

IPNetwork = IPv4Network | IPv6Network
Key = UUID | str | int
"""What a record is told apart by from all others of its noun."""
SortValue = str | int | float | bool | datetime | None
Settings = TypeVar("Settings")
Edit = abc.Callable[[Settings], Settings]
"""Computes the new settings from the current ones, inside the transaction that writes them."""


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """An organization, one of its teams, or one of that team's keys. A platform key has neither of the first two."""

    organization: str | None
    team: str | None = None
    api_key: str | None = None

    @property
    def name(self) -> str:
        """`organizations/acme/teams/search/apiKeys/9fKq…`, as far as the path goes."""
        kinds = (("organizations", self.organization), ("teams", self.team), ("apiKeys", self.api_key))
        return "/".join(f"{kind}/{segment}" for kind, segment in kinds if segment is not None)


@dataclass(frozen=True, slots=True)
class Order:
    """By which field a list is sorted."""

    path: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """At most `size` records that meet `condition`, sorted by `order` and then by key, after the one with key `after`.

    `after_values` are what that record has in the fields of `order`. `condition` is a `gateway.store.listing.Condition`
    or None. Records that were deleted are left out unless `shows_deleted`.
    """

    size: int
    after: Key | None = None
    condition: object | None = None
    order: tuple[Order, ...] = ()
    after_values: tuple[SortValue, ...] = ()
    shows_deleted: bool = False


@dataclass(frozen=True, slots=True)
class PriorityClassSettings:
    """A lower rank is served first. `min_share` of the engine, 0 to 1; no `max_queue_wait_ms`: no bound."""

    rank: int = 100
    min_share: float = 0.0
    preemptible: bool = True
    max_queue_wait_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """`id` is its name's last part."""

    id: str
    settings: PriorityClassSettings
    etag: str

    @property
    def resource(self) -> str:
        return f"priorityClasses/{self.id}"


@dataclass(frozen=True, slots=True)
class OrganizationSettings:
    display_name: str = ""
    state: State = State.ACTIVE


@dataclass(frozen=True, slots=True)
class Organization:
    """Deleted since `deleted_at`, gone at `purge_at`; both None of one that is not deleted."""

    id: UUID
    path: ResourcePath
    settings: OrganizationSettings
    etag: str
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None = None
    purge_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class TeamSettings:
    """`class_grants` are the classes that keys may ask for, beside the default one, which they always may.

    With `durable_usage` a caller hears of the end of a generation only when its usage is on disk. With
    `shares_prefix_cache` prompts share what they begin with also among teams of the organization that have it, too.
    With `speculation_disabled` nothing is guessed ahead, whatever a request says.
    """

    display_name: str = ""
    state: State = State.ACTIVE
    default_class: str = DEFAULT_CLASS
    class_grants: tuple[str, ...] = ()
    durable_usage: bool = False
    shares_prefix_cache: bool = False
    speculation_disabled: bool = False


@dataclass(frozen=True, slots=True)
class Team:
    id: UUID
    path: ResourcePath
    settings: TeamSettings
    etag: str
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None = None
    purge_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ApiKeySettings:
    """Empty grants and networks mean: whatever the team may use, from anywhere. No `expires_at`: for ever."""

    display_name: str = ""
    scopes: tuple[KeyScope, ...] = (KeyScope.INFERENCE, KeyScope.QUOTA_READ)
    model_grants: tuple[str, ...] = ()
    class_grants: tuple[str, ...] = ()
    ip_cidrs: tuple[IPNetwork, ...] = ()
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class KeySecret:
    """The keyed hash of a secret, and the version of the pepper that keyed it."""

    digest: bytes
    pepper_version: int
    not_after: datetime | None = None
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ApiKey:
    id: UUID
    path: ResourcePath
    settings: ApiKeySettings
    secrets: tuple[KeySecret, ...]
    revoked_at: datetime | None
    revoke_reason: str | None
    last_used_at: datetime | None
    etag: str
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None = None
    purge_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """At most `amount` per period, `burst` of it at once, for one model or (empty) all together.

    CONCURRENCY counts live requests: `period_ms` and `burst` are None for it, and set for all others.
    """

    dimension: Dimension
    amount: int
    period_ms: int | None
    burst: int | None
    model: str = ""


@dataclass(frozen=True, slots=True)
class QuotaBudget:
    """At most `amount` cost units per calendar window, for one model or (empty) all together."""

    calendar: Calendar
    amount: int
    model: str = ""


@dataclass(frozen=True, slots=True)
class QuotaCost:
    """Cost units per token of one model or (empty) of all that have no entry; cached input is at most `input_token`."""

    input_token: int
    cached_input_token: int
    output_token: int
    model: str = ""


@dataclass(frozen=True, slots=True)
class QuotaGrant:
    """The limit of `dimension`, or the budget of `calendar`, is at least `amount` until `expires_at`.

    `burst` None: it grows with the limit.
    """

    id: UUID
    dimension: Dimension | None
    calendar: Calendar | None
    model: str
    amount: int
    burst: int | None
    expires_at: datetime
    reason: str
    creator: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class QuotaPolicySettings:
    """`weight` in (0, 1000] for organizations and teams, None for keys; `max_overdraft` in the unit of each limit,
    0: as much as the limit refills in five minutes, of a budget a hundredth.

    `time_zone` is an IANA name; `reservation` None: what the node above says.
    """

    weight: float | None = 1.0
    limits: tuple[QuotaLimit, ...] = ()
    mode: Mode = Mode.ENFORCE
    on_store_loss: StoreLossAction = StoreLossAction.SERVE_STALE
    max_overdraft: int = 0
    strict: bool = False
    time_zone: str = "UTC"
    reservation: ReservationMode | None = None
    budgets: tuple[QuotaBudget, ...] = ()
    costs: tuple[QuotaCost, ...] = ()


@dataclass(frozen=True, slots=True)
class QuotaPolicy:
    """`path` is the organization, team or key that the policy governs; `grants` are those that have not ended."""

    id: UUID
    path: ResourcePath
    slug: str
    settings: QuotaPolicySettings
    revision: int
    etag: str
    created_at: datetime
    updated_at: datetime
    grants: tuple[QuotaGrant, ...] = ()


def etag_of(revision: int) -> str:
    """The etag of a record that this revision changed last."""
    return f"{revision:x}"
