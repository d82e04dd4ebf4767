"""Who else may sign credentials, and who has which role. Deleted rows stay, so that a reader of what is new sees them.

Whoever has a role need not be in a table: a principal is an API key or the subject of an issuer's tokens, by name.
"""

import uuid
from datetime import datetime

from sqlalchemy import ARRAY, CheckConstraint, ForeignKey, ForeignKeyConstraint, Index, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from gateway.store.base import SLUG, Base, one_of
from gateway.store.enums import Role

MAX_PRINCIPAL_CHARS = 400


class JwtIssuerRow(Base):
    """An issuer of JSON Web Tokens. One with `org_id` speaks for that organization only."""

    __tablename__ = "jwt_issuer"
    __table_args__ = (
        CheckConstraint(f"slug {SLUG}", name="slug"),
        CheckConstraint("issuer <> ''", name="issuer"),
        CheckConstraint("cardinality(audiences) > 0", name="audiences"),
        CheckConstraint("cardinality(algorithms) > 0", name="algorithms"),
        Index("uq_jwt_issuer_slug", "slug", unique=True, postgresql_where="deleted_at IS NULL"),
        Index("uq_jwt_issuer_issuer", "issuer", unique=True, postgresql_where="deleted_at IS NULL"),
        Index(None, "revision"),
    )

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    slug: Mapped[str]
    issuer: Mapped[str]
    audiences: Mapped[list[str]] = mapped_column(ARRAY(Text))
    jwks_uri: Mapped[str]
    algorithms: Mapped[list[str]] = mapped_column(ARRAY(Text))
    claim_map: Mapped[dict[str, str]] = mapped_column(JSONB)
    org_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("organization.id", ondelete="CASCADE"))
    revision: Mapped[int]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None]


class RoleBindingRow(Base):
    """`principal` has `role` on the platform, in an organization or in a team, by which ids are set."""

    __tablename__ = "role_binding"
    __table_args__ = (
        ForeignKeyConstraint(["org_id", "team_id"], ["team.org_id", "team.id"], ondelete="CASCADE"),
        CheckConstraint(f"length(principal) BETWEEN 1 AND {MAX_PRINCIPAL_CHARS}", name="principal"),
        CheckConstraint(one_of("role", Role), name="role"),
        CheckConstraint(
            "CASE WHEN role LIKE 'PLATFORM%' THEN org_id IS NULL AND team_id IS NULL "
            "WHEN role = 'ORG_ADMIN' THEN org_id IS NOT NULL AND team_id IS NULL "
            "ELSE org_id IS NOT NULL AND team_id IS NOT NULL END",
            name="depth",
        ),
        Index(
            "uq_role_binding_principal_role_org_id_team_id",
            "principal",
            "role",
            "org_id",
            "team_id",
            unique=True,
            postgresql_nulls_not_distinct=True,
            postgresql_where="deleted_at IS NULL",
        ),
        Index(None, "revision"),
    )

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    principal: Mapped[str]
    role: Mapped[str]
    org_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("organization.id", ondelete="CASCADE"))
    team_id: Mapped[uuid.UUID | None]
    revision: Mapped[int]
    created_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None]
