"""What was changed, append-only and chained, and under which request id."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004_audit"
down_revision = "0003_quota_policies"
branch_labels = None
depends_on = None

REFUSE_CHANGES = """
CREATE FUNCTION audit_event_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'audit_event is append-only' USING ERRCODE = 'wrong_object_type';
END $$
"""
ROW_TRIGGER = """
CREATE TRIGGER audit_event_append_only BEFORE UPDATE OR DELETE ON audit_event
FOR EACH ROW EXECUTE FUNCTION audit_event_refuse_change()
"""
TRUNCATE_TRIGGER = """
CREATE TRIGGER audit_event_no_truncate BEFORE TRUNCATE ON audit_event
FOR EACH STATEMENT EXECUTE FUNCTION audit_event_refuse_change()
"""


def upgrade() -> None:
    _create_audit_event()
    _create_admin_request()
    op.execute(REFUSE_CHANGES)
    op.execute(ROW_TRIGGER)
    op.execute(TRUNCATE_TRIGGER)


def downgrade() -> None:
    op.drop_table("admin_request")
    op.drop_table("audit_event")
    op.execute("DROP FUNCTION audit_event_refuse_change")


def _create_audit_event() -> None:
    op.create_table(
        "audit_event",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("event_time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("before", postgresql.JSONB(none_as_null=True), nullable=True),
        sa.Column("after", postgresql.JSONB(none_as_null=True), nullable=True),
        sa.Column("correlation_id", sa.Text(), nullable=False),
        sa.Column("previous_hash", sa.LargeBinary(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint(
            "octet_length(previous_hash) = 32 AND octet_length(hash) = 32", name=op.f("ck_audit_event_hash")
        ),
        sa.PrimaryKeyConstraint("id", name="pk_audit_event"),
    )
    op.create_index("ix_audit_event_resource_id", "audit_event", ["resource", "id"])


def _create_admin_request() -> None:
    op.create_table(
        "admin_request",
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Uuid(), nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=False),
        sa.Column("resource_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("actor", "request_id", name="pk_admin_request"),
    )
    op.create_index("ix_admin_request_created_at", "admin_request", ["created_at"])
