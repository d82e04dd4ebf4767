"""API keys and the keyed hashes of their secrets."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002_credentials"
down_revision = "0001_tenancy"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_api_key()
    _create_api_key_secret()


def downgrade() -> None:
    op.drop_table("api_key_secret")
    op.drop_table("api_key")


def _create_api_key() -> None:
    op.create_table(
        "api_key",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("public_id", sa.Text(), nullable=False),
        sa.Column("org_id", sa.Uuid(), nullable=True),
        sa.Column("team_id", sa.Uuid(), nullable=True),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("scopes", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("model_grants", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("class_grants", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("ip_cidrs", sa.ARRAY(postgresql.CIDR()), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoke_reason", sa.Text(), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "CASE WHEN org_id IS NULL AND team_id IS NULL THEN scopes = ARRAY['admin'] "
            "ELSE org_id IS NOT NULL AND team_id IS NOT NULL AND cardinality(scopes) > 0 "
            "AND scopes <@ ARRAY['inference', 'quota.read'] END",
            name=op.f("ck_api_key_scopes"),
        ),
        sa.CheckConstraint("public_id ~ '^[0-9A-Za-z]{12}$'", name=op.f("ck_api_key_public_id")),
        sa.CheckConstraint("revoke_reason IS NULL OR revoked_at IS NOT NULL", name=op.f("ck_api_key_revoke_reason")),
        sa.ForeignKeyConstraint(["org_id", "team_id"], ["team.org_id", "team.id"], name="fk_api_key_org_id_team_id"),
        sa.PrimaryKeyConstraint("id", name="pk_api_key"),
        sa.UniqueConstraint("org_id", "team_id", "id", name="uq_api_key_org_id_team_id_id"),
        sa.UniqueConstraint("public_id", name="uq_api_key_public_id"),
    )
    op.create_index("ix_api_key_revision", "api_key", ["revision"])


def _create_api_key_secret() -> None:
    op.create_table(
        "api_key_secret",
        sa.Column("key_id", sa.Uuid(), nullable=False),
        sa.Column("hmac", sa.LargeBinary(), nullable=False),
        sa.Column("pepper_version", sa.BigInteger(), nullable=False),
        sa.Column("not_after", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("octet_length(hmac) = 32", name=op.f("ck_api_key_secret_hmac")),
        sa.CheckConstraint("pepper_version > 0", name=op.f("ck_api_key_secret_pepper_version")),
        sa.ForeignKeyConstraint(["key_id"], ["api_key.id"], name="fk_api_key_secret_key_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("key_id", "hmac", name="pk_api_key_secret"),
    )
