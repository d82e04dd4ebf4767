"""Weights and limits of organizations, teams and keys."""

import sqlalchemy as sa
from alembic import op

revision = "0003_quota_policies"
down_revision = "0002_credentials"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_quota_policy()
    _create_quota_limit()


def downgrade() -> None:
    op.drop_table("quota_limit")
    op.drop_table("quota_policy")


def _create_quota_policy() -> None:
    op.create_table(
        "quota_policy",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("org_id", sa.Uuid(), nullable=False),
        sa.Column("team_id", sa.Uuid(), nullable=True),
        sa.Column("key_id", sa.Uuid(), nullable=True),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=True),
        sa.Column("on_store_loss", sa.Text(), nullable=False),
        sa.Column("max_overdraft", sa.BigInteger(), nullable=False),
        sa.Column("strict", sa.Boolean(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("mode IN ('ENFORCE', 'SHADOW', 'BORROW')", name=op.f("ck_quota_policy_mode")),
        sa.CheckConstraint(
            "on_store_loss IN ('SERVE_STALE', 'FAIL_CLOSED')", name=op.f("ck_quota_policy_on_store_loss")
        ),
        sa.CheckConstraint("slug ~ '^[a-z][a-z0-9-]{0,62}$'", name=op.f("ck_quota_policy_slug")),
        sa.CheckConstraint(
            "CASE WHEN key_id IS NULL THEN weight IS NOT NULL AND weight > 0 AND weight <= 1000 "
            "ELSE weight IS NULL END",
            name=op.f("ck_quota_policy_weight"),
        ),
        sa.CheckConstraint("key_id IS NULL OR team_id IS NOT NULL", name=op.f("ck_quota_policy_scope")),
        sa.CheckConstraint("max_overdraft >= 0", name=op.f("ck_quota_policy_max_overdraft")),
        sa.ForeignKeyConstraint(
            ["org_id", "team_id", "key_id"],
            ["api_key.org_id", "api_key.team_id", "api_key.id"],
            name="fk_quota_policy_org_id_team_id_key_id",
        ),
        sa.ForeignKeyConstraint(
            ["org_id", "team_id"], ["team.org_id", "team.id"], name="fk_quota_policy_org_id_team_id"
        ),
        sa.ForeignKeyConstraint(["org_id"], ["organization.id"], name="fk_quota_policy_org_id"),
        sa.PrimaryKeyConstraint("id", name="pk_quota_policy"),
        sa.UniqueConstraint(
            "org_id", "team_id", "key_id", name="uq_quota_policy_scope", postgresql_nulls_not_distinct=True
        ),
    )
    op.create_index("ix_quota_policy_revision", "quota_policy", ["revision"])


def _create_quota_limit() -> None:
    op.create_table(
        "quota_limit",
        sa.Column("policy_id", sa.Uuid(), nullable=False),
        sa.Column("dimension", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("period_ms", sa.BigInteger(), nullable=True),
        sa.Column("burst", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "(dimension = 'CONCURRENCY') = (period_ms IS NULL) AND (period_ms IS NULL) = (burst IS NULL)",
            name=op.f("ck_quota_limit_bucket"),
        ),
        sa.CheckConstraint(
            "dimension IN ('REQUESTS', 'INPUT_TOKENS', 'OUTPUT_TOKENS', 'TOTAL_TOKENS', 'COST_UNITS', 'CONCURRENCY')",
            name=op.f("ck_quota_limit_dimension"),
        ),
        sa.CheckConstraint("amount > 0", name=op.f("ck_quota_limit_amount")),
        sa.CheckConstraint("burst > 0", name=op.f("ck_quota_limit_burst")),
        sa.CheckConstraint("period_ms > 0", name=op.f("ck_quota_limit_period")),
        sa.ForeignKeyConstraint(
            ["policy_id"], ["quota_policy.id"], name="fk_quota_limit_policy_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("policy_id", "dimension", "model", name="pk_quota_limit"),
    )
