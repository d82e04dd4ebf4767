"""Client request ids that were used, and the generation that each stands for."""

import sqlalchemy as sa
from alembic import op

revision = "0010_generations"
down_revision = "0009_identity"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "generation_request",
        sa.Column("team_id", sa.Uuid(), nullable=False),
        sa.Column("request_id", sa.Uuid(), nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=False),
        sa.Column("generation_id", sa.Uuid(), nullable=False),
        sa.Column("instance_id", sa.Uuid(), nullable=False),
        sa.Column("gateway", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("octet_length(fingerprint) = 32", name=op.f("ck_generation_request_fingerprint")),
        sa.PrimaryKeyConstraint("team_id", "request_id", name=op.f("pk_generation_request")),
    )
    op.create_index(op.f("ix_generation_request_expires_at"), "generation_request", ["expires_at"])
    op.create_index(
        "ix_generation_request_running",
        "generation_request",
        ["instance_id"],
        postgresql_where=sa.text("finished_at IS NULL"),
    )


def downgrade() -> None:
    op.drop_table("generation_request")
