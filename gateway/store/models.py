"""The tables of tenancy, credentials and policy, as SQLAlchemy sees them.

Constraints live here and in the migrations, which a test holds equal. Rows carry the policy revision that last changed
them. Statements live beside this file, one module per noun; nothing outside `gateway.store` sees a row.
"""

import uuid
from datetime import datetime

from sqlalchemy import (
    ARRAY,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import CIDR
from sqlalchemy.orm import Mapped, mapped_column, relationship

from gateway.quota_terms import Mode
from gateway.store.base import SLUG, Base, one_of
from gateway.store.enums import Dimension, ReservationMode, State, StoreLossAction
from gateway.store.policy_models import QuotaBudgetRow, QuotaCostRow, QuotaGrantRow

MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000  # smaller ones are refused where they are set; the engine takes no less
_ADMIN_SCOPES = (
    "'admin.read', 'admin.tenancy', 'admin.keys', 'admin.quota', 'admin.roles', 'admin.operate', 'admin.system'"
)
PLATFORM_SCOPES = f"ARRAY['admin', {_ADMIN_SCOPES}]"
TEAM_SCOPES = f"ARRAY['inference', 'quota.read', {_ADMIN_SCOPES}]"


class PolicyRevisionRow(Base):
    """One row: the newest revision, and the end of the audit chain. Its lock puts all changes in one order."""

    __tablename__ = "policy_revision"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"), CheckConstraint("revision >= 0", name="revision"))

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    revision: Mapped[int]
    audit_head: Mapped[bytes]


class PriorityClassRow(Base):
    """How urgent a request may be. A lower rank is served first."""

    __tablename__ = "priority_class"
    __table_args__ = (
        CheckConstraint(f"name {SLUG}", name="name"),
        CheckConstraint("rank >= 0", name="rank"),
        CheckConstraint("min_share >= 0 AND min_share <= 1", name="min_share"),
        CheckConstraint("max_queue_wait_ms > 0", name="max_queue_wait"),
    )

    name: Mapped[str] = mapped_column(primary_key=True)
    rank: Mapped[int]
    min_share: Mapped[float]
    preemptible: Mapped[bool]
    max_queue_wait_ms: Mapped[int | None]
    revision: Mapped[int]
    # Deleted rows stay, so that whoever reads what is newer than a revision learns of it.
    deleted_at: Mapped[datetime | None]


class OrganizationRow(Base):
    """The root of a tenant tree. A deleted one is gone at `purge_at`, as are teams and keys."""

    __tablename__ = "organization"
    __table_args__ = (
        UniqueConstraint("slug"),
        CheckConstraint(f"slug {SLUG}", name="slug"),
        CheckConstraint(one_of("state", State), name="state"),
        Index(None, "revision"),
    )

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    slug: Mapped[str]
    display_name: Mapped[str]
    state: Mapped[str]
    revision: Mapped[int]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None]
    purge_at: Mapped[datetime | None]


class TeamRow(Base):
    """The tenant: the unit of weight, quota and accounting. Class grants are checked where they are written."""

    __tablename__ = "team"
    __table_args__ = (
        UniqueConstraint("org_id", "slug"),
        UniqueConstraint("org_id", "id"),  # what composite foreign keys point at
        CheckConstraint(f"slug {SLUG}", name="slug"),
        CheckConstraint(one_of("state", State), name="state"),
        CheckConstraint("octet_length(cache_salt) = 32", name="cache_salt"),
        Index(None, "revision"),
    )

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    org_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("organization.id"))
    slug: Mapped[str]
    display_name: Mapped[str]
    state: Mapped[str]
    cache_salt: Mapped[bytes]
    default_class: Mapped[str] = mapped_column(ForeignKey("priority_class.name"))
    class_grants: Mapped[list[str]] = mapped_column(ARRAY(Text))
    # Callers hear of an end only when its usage is on disk.
    durable_usage: Mapped[bool] = mapped_column(server_default=text("false"))
    # The salt is the organization's, not its own.
    shares_prefix_cache: Mapped[bool] = mapped_column(server_default=text("false"))
    # Nothing is guessed ahead, whatever a request says.
    speculation_disabled: Mapped[bool] = mapped_column(server_default=text("false"))
    revision: Mapped[int]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None]
    purge_at: Mapped[datetime | None]

    organization: Mapped[OrganizationRow] = relationship(lazy="raise", viewonly=True)


class ApiKeyRow(Base):
    """A credential. Of one team, or (both ids null) of the platform's administrators."""

    __tablename__ = "api_key"
    __table_args__ = (
        ForeignKeyConstraint(["org_id", "team_id"], ["team.org_id", "team.id"]),
        UniqueConstraint("public_id"),
        UniqueConstraint("org_id", "team_id", "id"),
        CheckConstraint("public_id ~ '^[0-9A-Za-z]{12}$'", name="public_id"),
        CheckConstraint(
            f"CASE WHEN org_id IS NULL AND team_id IS NULL THEN scopes <@ {PLATFORM_SCOPES} "
            f"ELSE org_id IS NOT NULL AND team_id IS NOT NULL AND scopes <@ {TEAM_SCOPES} END "
            "AND cardinality(scopes) > 0",
            name="scopes",
        ),
        CheckConstraint("revoke_reason IS NULL OR revoked_at IS NOT NULL", name="revoke_reason"),
        Index(None, "revision"),
    )

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    public_id: Mapped[str]
    org_id: Mapped[uuid.UUID | None]
    team_id: Mapped[uuid.UUID | None]
    display_name: Mapped[str]
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text))
    model_grants: Mapped[list[str]] = mapped_column(ARRAY(Text))
    class_grants: Mapped[list[str]] = mapped_column(ARRAY(Text))
    ip_cidrs: Mapped[list[str]] = mapped_column(ARRAY(CIDR))
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    revoke_reason: Mapped[str | None]
    last_used_at: Mapped[datetime | None]
    revision: Mapped[int]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None]
    purge_at: Mapped[datetime | None]
    # Whether its revocation ended what it had running, on every gateway.
    aborts_inflight: Mapped[bool] = mapped_column(server_default=text("false"))

    secrets: Mapped[list["ApiKeySecretRow"]] = relationship(
        lazy="raise", order_by="ApiKeySecretRow.created_at", cascade="all, delete-orphan"
    )


class ApiKeySecretRow(Base):
    """One secret of a key, as a keyed hash. A key has two of them while a rotation's grace time lasts."""

    __tablename__ = "api_key_secret"
    __table_args__ = (
        CheckConstraint("octet_length(hmac) = 32", name="hmac"),
        CheckConstraint("pepper_version > 0", name="pepper_version"),
    )

    key_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("api_key.id", ondelete="CASCADE"), primary_key=True)
    hmac: Mapped[bytes] = mapped_column(primary_key=True)
    pepper_version: Mapped[int]
    not_after: Mapped[datetime | None]
    created_at: Mapped[datetime]


class QuotaPolicyRow(Base):
    """Weight and limits of one organization, team or key: of the deepest of its three ids."""

    __tablename__ = "quota_policy"
    __table_args__ = (
        ForeignKeyConstraint(["org_id", "team_id"], ["team.org_id", "team.id"]),
        ForeignKeyConstraint(["org_id", "team_id", "key_id"], ["api_key.org_id", "api_key.team_id", "api_key.id"]),
        # One policy each, at most: a null stands for one place in the tree, so two of them are equal.
        UniqueConstraint(
            "org_id", "team_id", "key_id", name="uq_quota_policy_scope", postgresql_nulls_not_distinct=True
        ),
        CheckConstraint("key_id IS NULL OR team_id IS NOT NULL", name="scope"),
        CheckConstraint(f"slug {SLUG}", name="slug"),
        CheckConstraint(one_of("mode", Mode), name="mode"),
        CheckConstraint(one_of("on_store_loss", StoreLossAction), name="on_store_loss"),
        # A share is against siblings, and keys share nothing among themselves. NaN is above every bound.
        CheckConstraint(
            f"CASE WHEN key_id IS NULL THEN weight IS NOT NULL AND weight > 0 AND weight <= {MAX_WEIGHT} "
            "ELSE weight IS NULL END",
            name="weight",
        ),
        CheckConstraint("max_overdraft >= 0", name="max_overdraft"),
        CheckConstraint(one_of("reservation", ReservationMode), name="reservation"),
        Index(None, "revision"),
    )

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    org_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("organization.id"))
    team_id: Mapped[uuid.UUID | None]
    key_id: Mapped[uuid.UUID | None]
    slug: Mapped[str]
    mode: Mapped[str]
    weight: Mapped[float | None]
    on_store_loss: Mapped[str]
    max_overdraft: Mapped[int]
    strict: Mapped[bool]
    time_zone: Mapped[str] = mapped_column(server_default="UTC")
    reservation: Mapped[str | None]
    revision: Mapped[int]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]

    limits: Mapped[list["QuotaLimitRow"]] = relationship(
        lazy="raise", order_by="(QuotaLimitRow.dimension, QuotaLimitRow.model)", cascade="all, delete-orphan"
    )
    budgets: Mapped[list[QuotaBudgetRow]] = relationship(lazy="raise", cascade="all, delete-orphan")
    costs: Mapped[list[QuotaCostRow]] = relationship(lazy="raise", cascade="all, delete-orphan")
    # Those that have not ended, as the statement begins.
    grants: Mapped[list[QuotaGrantRow]] = relationship(
        lazy="raise",
        viewonly=True,
        order_by=QuotaGrantRow.id,
        primaryjoin=lambda: (QuotaGrantRow.policy_id == QuotaPolicyRow.id) & (QuotaGrantRow.expires_at > func.now()),
    )


class QuotaLimitRow(Base):
    """A ceiling on one dimension, for one model or (empty) for all together. Concurrency has no period and no burst."""

    __tablename__ = "quota_limit"
    __table_args__ = (
        CheckConstraint(one_of("dimension", Dimension), name="dimension"),
        CheckConstraint("amount > 0", name="amount"),
        CheckConstraint("period_ms > 0", name="period"),
        CheckConstraint("burst > 0", name="burst"),
        CheckConstraint(
            "(dimension = 'CONCURRENCY') = (period_ms IS NULL) AND (period_ms IS NULL) = (burst IS NULL)",
            name="bucket",
        ),
    )

    policy_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("quota_policy.id", ondelete="CASCADE"), primary_key=True)
    dimension: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int]
    period_ms: Mapped[int | None]
    burst: Mapped[int | None]
