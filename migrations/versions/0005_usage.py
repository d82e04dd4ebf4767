"""What each generation used, partitioned by day. `gateway.store.usage` makes the partitions of the days."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005_usage"
down_revision = "0004_audit"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_usage_event()
    op.execute("CREATE TABLE usage_event_default PARTITION OF usage_event DEFAULT")


def downgrade() -> None:
    op.drop_table("usage_event")


def _create_usage_event() -> None:
    op.create_table(
        "usage_event",
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("generation_id", sa.Uuid(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("organization_id", sa.Uuid(), nullable=False),
        sa.Column("team_id", sa.Uuid(), nullable=False),
        sa.Column("key_id", sa.Uuid(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("priority_class", sa.Text(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reserved_tokens", sa.BigInteger(), nullable=False),
        sa.Column("billed_tokens", sa.BigInteger(), nullable=False),
        sa.Column("discarded_tokens", sa.BigInteger(), nullable=False),
        sa.Column("recomputed_tokens", sa.BigInteger(), nullable=False),
        sa.Column("num_preemptions", sa.BigInteger(), nullable=False),
        sa.Column("finish_reason", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("queue_ns", sa.BigInteger(), nullable=False),
        sa.Column("prefill_ns", sa.BigInteger(), nullable=False),
        sa.Column("decode_ns", sa.BigInteger(), nullable=False),
        sa.Column("preempted_ns", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("policy_revision", sa.BigInteger(), nullable=False),
        sa.Column("labels", postgresql.JSONB(), nullable=False),
        sa.CheckConstraint("source IN ('ENGINE', 'GATEWAY')", name=op.f("ck_usage_event_source")),
        sa.CheckConstraint(
            # The first 48 bits of a UUIDv7 are milliseconds since 1970 (RFC 9562, §5.7).
            "substr(generation_id::text, 15, 1) = '7' AND day = DATE '1970-01-01' + "
            "(('x' || translate(substr(generation_id::text, 1, 13), '-', ''))::bit(48)::bigint / 86400000)::integer",
            name=op.f("ck_usage_event_day"),
        ),
        sa.CheckConstraint(
            "input_tokens >= 0 AND cached_input_tokens BETWEEN 0 AND input_tokens AND output_tokens >= 0 "
            "AND reserved_tokens >= 0 AND billed_tokens >= 0 AND discarded_tokens >= 0 AND recomputed_tokens >= 0 "
            "AND num_preemptions >= 0",
            name=op.f("ck_usage_event_counts"),
        ),
        sa.CheckConstraint(
            "queue_ns >= 0 AND prefill_ns >= 0 AND decode_ns >= 0 AND preempted_ns >= 0",
            name=op.f("ck_usage_event_timings"),
        ),
        sa.PrimaryKeyConstraint("day", "generation_id", name="pk_usage_event"),
        postgresql_partition_by="RANGE (day)",
    )
