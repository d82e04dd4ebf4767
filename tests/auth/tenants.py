"""Two tenants as a snapshot has them, made without a database, and a cache that holds what it is told."""

from dataclasses import replace
from uuid import UUID

from gateway.quota_terms import Mode
from gateway.store.enums import KeyScope, State, StoreLossAction
from gateway.store.snapshot import (
    EMPTY_SNAPSHOT,
    KeyRecord,
    OrganizationRecord,
    PolicyRecord,
    TeamRecord,
    TenancySnapshot,
)

POLICY = PolicyRecord(
    id=UUID(int=1),
    weight=1.0,
    limits=(),
    mode=Mode.ENFORCE,
    on_store_loss=StoreLossAction.SERVE_STALE,
    max_overdraft=0,
    strict=False,
    revision=1,
)


def team(slug: str, organization: str, number: int) -> TeamRecord:
    """The team, in an organization of its own."""
    return TeamRecord(
        id=UUID(int=100 + number),
        slug=slug,
        organization=OrganizationRecord(UUID(int=200 + number), organization, State.ACTIVE, POLICY),
        state=State.ACTIVE,
        cache_salt=bytes(32),
        default_class="default",
        class_grants=frozenset({"default"}),
        policy=POLICY,
    )


ACME = team("search", "acme", 1)
GLOBEX = team("search", "globex", 2)


def snapshot_of(*teams: TeamRecord, state: State = State.ACTIVE) -> TenancySnapshot:
    """The teams and their organizations, which are in this state."""
    organizations = {made.organization.id: replace(made.organization, state=state) for made in teams}
    placed = {made.id: replace(made, organization=organizations[made.organization.id]) for made in teams}
    return replace(EMPTY_SNAPSHOT, revision=1, teams=placed, organizations=organizations)


KEY_RECORD = KeyRecord(
    key_id=UUID(int=300),
    public_id="0123456789Ab",
    secrets=(),
    team=ACME,
    scopes=frozenset({KeyScope.INFERENCE}),
    model_grants=frozenset(),
    class_grants=frozenset(),
    ip_cidrs=(),
    expires_at=None,
    revoked_at=None,
    policy=None,
)


class FixedCache:
    """Takes the place of the cache over a database that always answers, and always the same."""

    def __init__(self, snapshot: TenancySnapshot) -> None:
        self.current = snapshot
        self.num_refreshes = 0

    def staleness_s(self) -> float:
        return 0.0

    async def refresh(self) -> TenancySnapshot:
        self.num_refreshes += 1
        return self.current
