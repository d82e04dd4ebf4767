"""Issuers of tokens, bindings of roles, and keys that may administrate.

The previous release reads the widened scopes only of keys that this one has made. Going back, such keys lose them, and
those that had no other are revoked: what they were for does not exist there.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009_identity"
down_revision = "0008_ledger_rollups"
branch_labels = None
depends_on = None

_ADMIN = "'admin.read', 'admin.tenancy', 'admin.keys', 'admin.quota', 'admin.roles', 'admin.operate', 'admin.system'"
_BEFORE = (
    "CASE WHEN org_id IS NULL AND team_id IS NULL THEN scopes = ARRAY['admin'] "
    "ELSE org_id IS NOT NULL AND team_id IS NOT NULL AND cardinality(scopes) > 0 "
    "AND scopes <@ ARRAY['inference', 'quota.read'] END"
)
_AFTER = (
    f"CASE WHEN org_id IS NULL AND team_id IS NULL THEN scopes <@ ARRAY['admin', {_ADMIN}] "
    f"ELSE org_id IS NOT NULL AND team_id IS NOT NULL AND scopes <@ ARRAY['inference', 'quota.read', {_ADMIN}] END "
    "AND cardinality(scopes) > 0"
)


def upgrade() -> None:
    _create_jwt_issuer()
    _create_role_binding()
    _replace_scopes_check(_AFTER)


def downgrade() -> None:
    op.drop_table("role_binding")
    op.drop_table("jwt_issuer")
    op.execute(
        "UPDATE api_key SET scopes = CASE WHEN team_id IS NULL THEN ARRAY['admin'] ELSE ARRAY['quota.read'] END, "
        "revoked_at = coalesce(revoked_at, clock_timestamp()) "
        "WHERE NOT scopes && ARRAY['admin', 'inference', 'quota.read']"
    )
    op.execute(
        "UPDATE api_key SET scopes = "
        "ARRAY(SELECT scope FROM unnest(scopes) AS scope WHERE scope IN ('admin', 'inference', 'quota.read')) "
        "WHERE NOT scopes <@ ARRAY['admin', 'inference', 'quota.read']"
    )
    _replace_scopes_check(_BEFORE)


def _replace_scopes_check(condition: str) -> None:
    op.drop_constraint(op.f("ck_api_key_scopes"), "api_key", type_="check")
    # Checked for the rows that are there in a second step, which keeps nobody from the table.
    op.create_check_constraint(op.f("ck_api_key_scopes"), "api_key", condition, postgresql_not_valid=True)
    op.execute("ALTER TABLE api_key VALIDATE CONSTRAINT ck_api_key_scopes")


def _create_jwt_issuer() -> None:
    op.create_table(
        "jwt_issuer",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("audiences", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("jwks_uri", sa.Text(), nullable=False),
        sa.Column("algorithms", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("claim_map", postgresql.JSONB(), nullable=False),
        sa.Column("org_id", sa.Uuid(), nullable=True),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("slug ~ '^[a-z][a-z0-9-]{0,62}$'", name=op.f("ck_jwt_issuer_slug")),
        sa.CheckConstraint("issuer <> ''", name=op.f("ck_jwt_issuer_issuer")),
        sa.CheckConstraint("cardinality(audiences) > 0", name=op.f("ck_jwt_issuer_audiences")),
        sa.CheckConstraint("cardinality(algorithms) > 0", name=op.f("ck_jwt_issuer_algorithms")),
        sa.ForeignKeyConstraint(["org_id"], ["organization.id"], name="fk_jwt_issuer_org_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_jwt_issuer"),
    )
    for column in ("slug", "issuer"):
        op.create_index(
            f"uq_jwt_issuer_{column}",
            "jwt_issuer",
            [column],
            unique=True,
            postgresql_where=sa.text("deleted_at IS NULL"),
        )
    op.create_index("ix_jwt_issuer_revision", "jwt_issuer", ["revision"])


def _create_role_binding() -> None:
    op.create_table(
        "role_binding",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("org_id", sa.Uuid(), nullable=True),
        sa.Column("team_id", sa.Uuid(), nullable=True),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("length(principal) BETWEEN 1 AND 400", name=op.f("ck_role_binding_principal")),
        sa.CheckConstraint(
            "role IN ('PLATFORM_ADMIN', 'PLATFORM_VIEWER', 'ORG_ADMIN', 'TEAM_ADMIN', 'MEMBER', 'SERVICE')",
            name=op.f("ck_role_binding_role"),
        ),
        sa.CheckConstraint(
            "CASE WHEN role LIKE 'PLATFORM%' THEN org_id IS NULL AND team_id IS NULL "
            "WHEN role = 'ORG_ADMIN' THEN org_id IS NOT NULL AND team_id IS NULL "
            "ELSE org_id IS NOT NULL AND team_id IS NOT NULL END",
            name=op.f("ck_role_binding_depth"),
        ),
        sa.ForeignKeyConstraint(["org_id"], ["organization.id"], name="fk_role_binding_org_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["org_id", "team_id"], ["team.org_id", "team.id"], name="fk_role_binding_org_id_team_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_role_binding"),
    )
    op.create_index(
        "uq_role_binding_principal_role_org_id_team_id",
        "role_binding",
        ["principal", "role", "org_id", "team_id"],
        unique=True,
        postgresql_nulls_not_distinct=True,
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_index("ix_role_binding_revision", "role_binding", ["revision"])
