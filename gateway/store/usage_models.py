"""The hourly sums of the ledger, which a trigger keeps equal to its rows, whoever inserts them."""

import uuid
from datetime import datetime

from sqlalchemy import CheckConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gateway.store.base import Base


class UsageRollupHourRow(Base):
    """All generations that began in one hour (UTC, the time inside their ids) and share the other keys.

    Stays when the partitions of its events are dropped.
    """

    __tablename__ = "usage_rollup_hour"
    __table_args__ = (CheckConstraint("extract(epoch FROM hour)::bigint % 3600 = 0", name="hour"),)

    hour: Mapped[datetime] = mapped_column(primary_key=True)
    organization_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    team_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    key_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    priority_class: Mapped[str] = mapped_column(primary_key=True)
    num_requests: Mapped[int]
    input_tokens: Mapped[int]
    cached_input_tokens: Mapped[int]
    output_tokens: Mapped[int]
    billed_tokens: Mapped[int]
    discarded_tokens: Mapped[int]
    recomputed_tokens: Mapped[int]
    num_preemptions: Mapped[int]
    queue_ns: Mapped[int]
    prefill_ns: Mapped[int]
    decode_ns: Mapped[int]
    preempted_ns: Mapped[int]
