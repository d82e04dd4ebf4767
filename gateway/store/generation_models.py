"""Which generation a client's request id stands for."""

import uuid
from datetime import datetime

from sqlalchemy import CheckConstraint, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from gateway.store.base import Base


class GenerationRequestRow(Base):
    """One client request id of one team, until it expires. What was used is in the ledger, the output nowhere.

    instance_id  the gateway process that runs it, and `gateway` where that one listens
    seen_at      when it last said that it does
    """

    __tablename__ = "generation_request"
    __table_args__ = (
        CheckConstraint("octet_length(fingerprint) = 32", name="fingerprint"),
        Index(None, "expires_at"),
        Index("ix_generation_request_running", "instance_id", postgresql_where=text("finished_at IS NULL")),
    )

    team_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    request_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    fingerprint: Mapped[bytes]
    generation_id: Mapped[uuid.UUID]
    instance_id: Mapped[uuid.UUID]
    gateway: Mapped[str]
    seen_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
