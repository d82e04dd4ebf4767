"""Temporary grants of quota, and refusals; budgets, prices and the way of reserving of quota policies."""

import sqlalchemy as sa
from alembic import op

revision = "0007_grants_and_denials"
down_revision = "0006_quota_state"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _extend_quota_policy()
    _create_quota_budget()
    _create_quota_cost()
    _create_quota_grant()
    _create_denial_event()


def downgrade() -> None:
    op.drop_table("denial_event")
    op.drop_table("quota_grant")
    op.drop_table("quota_cost")
    op.drop_table("quota_budget")
    op.drop_constraint(op.f("ck_quota_policy_reservation"), "quota_policy")
    op.drop_column("quota_policy", "reservation")
    op.drop_column("quota_policy", "time_zone")


def _extend_quota_policy() -> None:
    # The previous release writes neither column.
    op.add_column("quota_policy", sa.Column("time_zone", sa.Text(), nullable=False, server_default="UTC"))
    op.add_column("quota_policy", sa.Column("reservation", sa.Text(), nullable=True))
    op.create_check_constraint(
        op.f("ck_quota_policy_reservation"), "quota_policy", "reservation IN ('HARD', 'EXPECTED')"
    )


def _create_quota_budget() -> None:
    op.create_table(
        "quota_budget",
        sa.Column("policy_id", sa.Uuid(), nullable=False),
        sa.Column("calendar", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("calendar IN ('DAY', 'WEEK', 'MONTH')", name=op.f("ck_quota_budget_calendar")),
        sa.CheckConstraint("amount > 0", name=op.f("ck_quota_budget_amount")),
        sa.ForeignKeyConstraint(
            ["policy_id"], ["quota_policy.id"], name="fk_quota_budget_policy_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("policy_id", "calendar", "model", name="pk_quota_budget"),
    )


def _create_quota_cost() -> None:
    op.create_table(
        "quota_cost",
        sa.Column("policy_id", sa.Uuid(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("input_token", sa.BigInteger(), nullable=False),
        sa.Column("cached_input_token", sa.BigInteger(), nullable=False),
        sa.Column("output_token", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "cached_input_token >= 0 AND cached_input_token <= input_token AND output_token >= 0",
            name=op.f("ck_quota_cost_weights"),
        ),
        sa.ForeignKeyConstraint(["policy_id"], ["quota_policy.id"], name="fk_quota_cost_policy_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("policy_id", "model", name="pk_quota_cost"),
    )


def _create_quota_grant() -> None:
    op.create_table(
        "quota_grant",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("policy_id", sa.Uuid(), nullable=False),
        sa.Column("dimension", sa.Text(), nullable=True),
        sa.Column("calendar", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("burst", sa.BigInteger(), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("creator", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "dimension IN ('REQUESTS', 'INPUT_TOKENS', 'OUTPUT_TOKENS', 'TOTAL_TOKENS', 'COST_UNITS', 'CONCURRENCY')",
            name=op.f("ck_quota_grant_dimension"),
        ),
        sa.CheckConstraint("calendar IN ('DAY', 'WEEK', 'MONTH')", name=op.f("ck_quota_grant_calendar")),
        sa.CheckConstraint("(dimension IS NULL) <> (calendar IS NULL)", name=op.f("ck_quota_grant_raised")),
        sa.CheckConstraint("amount > 0", name=op.f("ck_quota_grant_amount")),
        sa.CheckConstraint("burst > 0 AND dimension <> 'CONCURRENCY'", name=op.f("ck_quota_grant_burst")),
        sa.CheckConstraint("expires_at > created_at", name=op.f("ck_quota_grant_expires_at")),
        sa.CheckConstraint("char_length(reason) BETWEEN 1 AND 200", name=op.f("ck_quota_grant_reason")),
        sa.ForeignKeyConstraint(
            ["policy_id"], ["quota_policy.id"], name="fk_quota_grant_policy_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_quota_grant"),
    )
    op.create_index("ix_quota_grant_policy_id_expires_at", "quota_grant", ["policy_id", "expires_at"])


def _create_denial_event() -> None:
    op.create_table(
        "denial_event",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("denied_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("organization_id", sa.Uuid(), nullable=False),
        sa.Column("team_id", sa.Uuid(), nullable=False),
        sa.Column("key_id", sa.Uuid(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("priority_class", sa.Text(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("max_output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reserved_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("is_shadow", sa.Boolean(), nullable=False),
        sa.Column("nodes", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("dimensions", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("waits_ms", sa.ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("policy_revision", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "input_tokens >= 0 AND max_output_tokens >= 0 AND reserved_tokens >= 0",
            name=op.f("ck_denial_event_counts"),
        ),
        sa.CheckConstraint(
            "cardinality(nodes) = cardinality(dimensions) AND cardinality(nodes) = cardinality(waits_ms)",
            name=op.f("ck_denial_event_limits"),
        ),
        sa.PrimaryKeyConstraint("id", name="pk_denial_event"),
    )
    op.create_index("ix_denial_event_denied_at", "denial_event", ["denied_at"])
    op.create_index("ix_denial_event_team_id_denied_at", "denial_event", ["team_id", "denied_at"])
