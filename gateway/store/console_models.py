"""What the console keeps besides the tenancy: who was signed out, and how often somebody tried to get in."""

from datetime import datetime

from sqlalchemy import CheckConstraint, Index
from sqlalchemy.orm import Mapped, mapped_column

from gateway.store.base import Base


class ConsoleSessionEndRow(Base):
    """A session that was signed out of, until its cookie would have expired anyway."""

    __tablename__ = "console_session_end"
    __table_args__ = (Index(None, "expires_at"),)

    session_id: Mapped[str] = mapped_column(primary_key=True)
    expires_at: Mapped[datetime]


class SignInWindowRow(Base):
    """Attempts of one bucket of callers in the window that ends then. Overwritten by the next one: rows are few."""

    __tablename__ = "sign_in_window"
    __table_args__ = (CheckConstraint("num_attempts > 0", name="num_attempts"),)

    kind: Mapped[str] = mapped_column(primary_key=True)
    bucket: Mapped[int] = mapped_column(primary_key=True)
    ends_at: Mapped[datetime]
    num_attempts: Mapped[int]
