"""Teams for which nothing is guessed ahead.

The new column has a default, so that the previous release reads and writes the table as before.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014_speculation"
down_revision = "0013_prefix_cache"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "team", sa.Column("speculation_disabled", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )


def downgrade() -> None:
    op.drop_column("team", "speculation_disabled")
