"""The tables that only grow: what was changed, under which request id, and what was used."""

import uuid
from datetime import date, datetime

from sqlalchemy import CheckConstraint, Identity, Index
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from gateway.store.base import Base, one_of
from gateway.store.enums import UsageSource


class AuditEventRow(Base):
    """What was changed, by whom. Append-only (a trigger refuses the rest); each row's hash covers the row before it."""

    __tablename__ = "audit_event"
    __table_args__ = (
        CheckConstraint("octet_length(previous_hash) = 32 AND octet_length(hash) = 32", name="hash"),
        Index(None, "resource", "id"),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    event_time: Mapped[datetime]
    revision: Mapped[int]
    actor: Mapped[str]
    action: Mapped[str]
    resource: Mapped[str]
    before: Mapped[dict[str, object] | None] = mapped_column(JSONB(none_as_null=True))
    after: Mapped[dict[str, object] | None] = mapped_column(JSONB(none_as_null=True))
    correlation_id: Mapped[str]
    previous_hash: Mapped[bytes]
    hash: Mapped[bytes]


class AdminRequestRow(Base):
    """A change that was made under a client's request id, so that a retry finds it."""

    __tablename__ = "admin_request"
    __table_args__ = (Index(None, "created_at"),)

    actor: Mapped[str] = mapped_column(primary_key=True)
    request_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    fingerprint: Mapped[bytes]
    resource_id: Mapped[uuid.UUID]
    created_at: Mapped[datetime]


class UsageEventRow(Base):
    """What one generation used, in the partition of the day inside its id. No foreign keys: it outlives its tenants."""

    __tablename__ = "usage_event"
    __table_args__ = (
        CheckConstraint(
            # The first 48 bits of a UUIDv7 are milliseconds since 1970 (RFC 9562, §5.7).
            "substr(generation_id::text, 15, 1) = '7' AND day = DATE '1970-01-01' + "
            "(('x' || translate(substr(generation_id::text, 1, 13), '-', ''))::bit(48)::bigint / 86400000)::integer",
            name="day",
        ),
        CheckConstraint(
            "input_tokens >= 0 AND cached_input_tokens BETWEEN 0 AND input_tokens AND output_tokens >= 0 "
            "AND reserved_tokens >= 0 AND billed_tokens >= 0 AND discarded_tokens >= 0 AND recomputed_tokens >= 0 "
            "AND num_preemptions >= 0",
            name="counts",
        ),
        CheckConstraint("queue_ns >= 0 AND prefill_ns >= 0 AND decode_ns >= 0 AND preempted_ns >= 0", name="timings"),
        CheckConstraint(one_of("source", UsageSource), name="source"),
        {"postgresql_partition_by": "RANGE (day)"},
    )

    day: Mapped[date] = mapped_column(primary_key=True)
    generation_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    request_id: Mapped[str]
    organization_id: Mapped[uuid.UUID]
    team_id: Mapped[uuid.UUID]
    key_id: Mapped[uuid.UUID]
    model: Mapped[str]
    priority_class: Mapped[str]
    input_tokens: Mapped[int]
    cached_input_tokens: Mapped[int]
    output_tokens: Mapped[int]
    reserved_tokens: Mapped[int]
    billed_tokens: Mapped[int]
    discarded_tokens: Mapped[int]
    recomputed_tokens: Mapped[int]
    num_preemptions: Mapped[int]
    finish_reason: Mapped[str]
    source: Mapped[str]
    queue_ns: Mapped[int]
    prefill_ns: Mapped[int]
    decode_ns: Mapped[int]
    preempted_ns: Mapped[int]
    finished_at: Mapped[datetime]
    policy_revision: Mapped[int]
    labels: Mapped[dict[str, str]] = mapped_column(JSONB)
