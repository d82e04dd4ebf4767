"""The tables that hang below a quota policy: budgets, prices, grants; and the refusals that limits have led to.

Constraints live here and in the migrations, which a test holds equal.
"""

import uuid
from datetime import datetime

from sqlalchemy import ARRAY, BigInteger, CheckConstraint, ForeignKey, Index, Text
from sqlalchemy.orm import Mapped, mapped_column

from gateway.quota_terms import Calendar
from gateway.store.base import Base, one_of
from gateway.store.enums import Dimension


class QuotaBudgetRow(Base):
    """Cost units per calendar window, for one model or (empty) for all together."""

    __tablename__ = "quota_budget"
    __table_args__ = (
        CheckConstraint(one_of("calendar", Calendar), name="calendar"),
        CheckConstraint("amount > 0", name="amount"),
    )

    policy_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("quota_policy.id", ondelete="CASCADE"), primary_key=True)
    calendar: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int]


class QuotaCostRow(Base):
    """Cost units per token of one model or (empty) of every model without a row."""

    __tablename__ = "quota_cost"
    __table_args__ = (
        CheckConstraint(
            "cached_input_token >= 0 AND cached_input_token <= input_token AND output_token >= 0", name="weights"
        ),
    )

    policy_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("quota_policy.id", ondelete="CASCADE"), primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    input_token: Mapped[int]
    cached_input_token: Mapped[int]
    output_token: Mapped[int]


class QuotaGrantRow(Base):
    """A limit or (with a calendar) a budget that is higher until `expires_at`."""

    __tablename__ = "quota_grant"
    __table_args__ = (
        CheckConstraint(one_of("dimension", Dimension), name="dimension"),
        CheckConstraint(one_of("calendar", Calendar), name="calendar"),
        CheckConstraint("(dimension IS NULL) <> (calendar IS NULL)", name="raised"),
        CheckConstraint("amount > 0", name="amount"),
        CheckConstraint("burst > 0 AND dimension <> 'CONCURRENCY'", name="burst"),
        CheckConstraint("expires_at > created_at", name="expires_at"),
        CheckConstraint("char_length(reason) BETWEEN 1 AND 200", name="reason"),
        Index(None, "policy_id", "expires_at"),
    )

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    policy_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("quota_policy.id", ondelete="CASCADE"))
    dimension: Mapped[str | None]
    calendar: Mapped[str | None]
    model: Mapped[str]
    amount: Mapped[int]
    burst: Mapped[int | None]
    expires_at: Mapped[datetime]
    reason: Mapped[str]
    creator: Mapped[str]
    created_at: Mapped[datetime]


class DenialEventRow(Base):
    """A request that limits refused, with its sizes: what a what-if needs beside the ledger. No text, no foreign keys.

    `nodes`, `dimensions` and `waits_ms` have one entry per violated limit; a wait of -1 is not known or never ends.
    """

    __tablename__ = "denial_event"
    __table_args__ = (
        CheckConstraint("input_tokens >= 0 AND max_output_tokens >= 0 AND reserved_tokens >= 0", name="counts"),
        CheckConstraint(
            "cardinality(nodes) = cardinality(dimensions) AND cardinality(nodes) = cardinality(waits_ms)", name="limits"
        ),
        Index(None, "denied_at"),
        Index(None, "team_id", "denied_at"),
    )

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    denied_at: Mapped[datetime]
    organization_id: Mapped[uuid.UUID]
    team_id: Mapped[uuid.UUID]
    key_id: Mapped[uuid.UUID]
    model: Mapped[str]
    priority_class: Mapped[str]
    input_tokens: Mapped[int]
    max_output_tokens: Mapped[int]
    reserved_tokens: Mapped[int]
    reason: Mapped[str]
    is_shadow: Mapped[bool]
    nodes: Mapped[list[str]] = mapped_column(ARRAY(Text))
    dimensions: Mapped[list[str]] = mapped_column(ARRAY(Text))
    waits_ms: Mapped[list[int]] = mapped_column(ARRAY(BigInteger))
    policy_revision: Mapped[int]
