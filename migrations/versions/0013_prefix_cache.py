"""Teams that share what their prompts begin with among those of their organization.

The new column has a default, so that the previous release reads and writes the table as before.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013_prefix_cache"
down_revision = "0012_console"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "team", sa.Column("shares_prefix_cache", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )


def downgrade() -> None:
    op.drop_column("team", "shares_prefix_cache")
