"""Organizations and teams, the priority classes they may use, and the one row that orders all changes."""

import sqlalchemy as sa
from alembic import op

revision = "0001_tenancy"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_policy_revision()
    _create_priority_class()
    _create_organization()
    _create_team()
    _seed()


def downgrade() -> None:
    op.drop_table("team")
    op.drop_table("organization")
    op.drop_table("priority_class")
    op.drop_table("policy_revision")


def _create_policy_revision() -> None:
    op.create_table(
        "policy_revision",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("audit_head", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_policy_revision_one_row")),
        sa.CheckConstraint("revision >= 0", name=op.f("ck_policy_revision_revision")),
        sa.PrimaryKeyConstraint("id", name="pk_policy_revision"),
    )


def _create_priority_class() -> None:
    op.create_table(
        "priority_class",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("min_share", sa.Double(), nullable=False),
        sa.Column("preemptible", sa.Boolean(), nullable=False),
        sa.Column("max_queue_wait_ms", sa.BigInteger(), nullable=True),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("name ~ '^[a-z][a-z0-9-]{0,62}$'", name=op.f("ck_priority_class_name")),
        sa.CheckConstraint("max_queue_wait_ms > 0", name=op.f("ck_priority_class_max_queue_wait")),
        sa.CheckConstraint("min_share >= 0 AND min_share <= 1", name=op.f("ck_priority_class_min_share")),
        sa.CheckConstraint("rank >= 0", name=op.f("ck_priority_class_rank")),
        sa.PrimaryKeyConstraint("name", name="pk_priority_class"),
    )


def _create_organization() -> None:
    op.create_table(
        "organization",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("slug ~ '^[a-z][a-z0-9-]{0,62}$'", name=op.f("ck_organization_slug")),
        sa.CheckConstraint("state IN ('ACTIVE', 'SUSPENDED')", name=op.f("ck_organization_state")),
        sa.PrimaryKeyConstraint("id", name="pk_organization"),
        sa.UniqueConstraint("slug", name="uq_organization_slug"),
    )
    op.create_index("ix_organization_revision", "organization", ["revision"])


def _create_team() -> None:
    op.create_table(
        "team",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("org_id", sa.Uuid(), nullable=False),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("cache_salt", sa.LargeBinary(), nullable=False),
        sa.Column("default_class", sa.Text(), nullable=False),
        sa.Column("class_grants", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("slug ~ '^[a-z][a-z0-9-]{0,62}$'", name=op.f("ck_team_slug")),
        sa.CheckConstraint("state IN ('ACTIVE', 'SUSPENDED')", name=op.f("ck_team_state")),
        sa.CheckConstraint("octet_length(cache_salt) = 32", name=op.f("ck_team_cache_salt")),
        sa.ForeignKeyConstraint(["default_class"], ["priority_class.name"], name="fk_team_default_class"),
        sa.ForeignKeyConstraint(["org_id"], ["organization.id"], name="fk_team_org_id"),
        sa.PrimaryKeyConstraint("id", name="pk_team"),
        sa.UniqueConstraint("org_id", "id", name="uq_team_org_id_id"),
        sa.UniqueConstraint("org_id", "slug", name="uq_team_org_id_slug"),
    )
    op.create_index("ix_team_revision", "team", ["revision"])


def _seed() -> None:
    op.execute("INSERT INTO policy_revision (id, revision, audit_head) VALUES (1, 0, decode(repeat('00', 32), 'hex'))")
    op.execute(
        "INSERT INTO priority_class (name, rank, min_share, preemptible, max_queue_wait_ms, revision) VALUES "
        "('priority', 0, 0, true, NULL, 0), ('default', 100, 0, true, NULL, 0), ('batch', 200, 0, true, NULL, 0)"
    )
