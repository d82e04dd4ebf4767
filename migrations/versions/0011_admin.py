"""Deletion that can be taken back for a while, and keys whose running work ends with them.

Every new column has a default or may be null, so that the previous release reads and writes the tables as before.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011_admin"
down_revision = "0010_generations"
branch_labels = None
depends_on = None

SOFT_DELETED = ("organization", "team", "api_key")


def upgrade() -> None:
    for table in SOFT_DELETED:
        op.add_column(table, sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True))
        op.add_column(table, sa.Column("purge_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("priority_class", sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column(
        "api_key", sa.Column("aborts_inflight", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )


def downgrade() -> None:
    op.drop_column("api_key", "aborts_inflight")
    op.drop_column("priority_class", "deleted_at")
    for table in reversed(SOFT_DELETED):
        op.drop_column(table, "purge_at")
        op.drop_column(table, "deleted_at")
