"""The tables that gateways share quotas through. Only the function `quota_exchange` writes them, and the cleaner."""

import uuid
from datetime import datetime
from decimal import Decimal

from sqlalchemy import CheckConstraint, Numeric, func, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from gateway.quota_terms import Dimension
from gateway.store.base import Base, one_of


class ReplicaRow(Base):
    """A gateway that has been heard of. `number` is that of the last turn whose reports are counted."""

    __tablename__ = "replica"
    # Rewritten many times a second, in place.
    __table_args__ = ({"postgresql_with": {"fillfactor": 50}},)

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    started_at: Mapped[datetime] = mapped_column(server_default=func.now())
    heartbeat_at: Mapped[datetime] = mapped_column(server_default=func.now())
    number: Mapped[int]


class QuotaBucketRow(Base):
    """The state of one limit; no foreign keys, because it outlives what it belongs to by less than a day.

    tat, ticks_per_ns  a rate's theoretical arrival time in ticks of 1/`ticks_per_ns` ns since 1970
    settled            what a budget window has used up for good
    holders            replica -> [amount, since_ns]: what it holds and has not reported as spent
    clock_ns           the server's clock at the last turn
    idle_from_ns …     the longest time of late in which the bucket was full
    """

    __tablename__ = "quota_bucket"
    __table_args__ = (
        CheckConstraint("ticks_per_ns > 0", name="ticks_per_ns"),
        CheckConstraint("(dimension = 'BUDGET') = (calendar <> '')", name="calendar"),
        CheckConstraint(one_of("dimension", Dimension), name="dimension"),
        {"postgresql_with": {"fillfactor": 70}},
    )

    node: Mapped[str] = mapped_column(primary_key=True)
    dimension: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    calendar: Mapped[str] = mapped_column(primary_key=True)
    window_start_ns: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    tat: Mapped[Decimal] = mapped_column(Numeric(60, 0), server_default=text("0"))
    ticks_per_ns: Mapped[Decimal] = mapped_column(Numeric(30, 0), server_default=text("1"))
    settled: Mapped[Decimal] = mapped_column(Numeric(30, 0), server_default=text("0"))
    holders: Mapped[dict[str, list[int]]] = mapped_column(JSONB, server_default=text("'{}'"))
    clock_ns: Mapped[int] = mapped_column(server_default=text("0"))
    idle_from_ns: Mapped[int] = mapped_column(server_default=text("0"))
    idle_until_ns: Mapped[int] = mapped_column(server_default=text("0"))
