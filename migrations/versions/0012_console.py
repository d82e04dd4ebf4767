"""Sessions of the console that were ended, and attempts to sign in, which several gateways count together."""

import sqlalchemy as sa
from alembic import op

revision = "0012_console"
down_revision = "0011_admin"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "console_session_end",
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_console_session_end")),
    )
    op.create_index(op.f("ix_console_session_end_expires_at"), "console_session_end", ["expires_at"])
    op.create_table(
        "sign_in_window",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("bucket", sa.BigInteger(), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("num_attempts", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("num_attempts > 0", name=op.f("ck_sign_in_window_num_attempts")),
        sa.PrimaryKeyConstraint("kind", "bucket", name=op.f("pk_sign_in_window")),
    )


def downgrade() -> None:
    op.drop_table("sign_in_window")
    op.drop_table("console_session_end")
