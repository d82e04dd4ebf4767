"""Statements on the hashes of keys' secrets: made anew when the pepper has a newer version."""

from collections import abc
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import update

from gateway.store.changes import Change, Changed, open_change
from gateway.store.db import Database
from gateway.store.models import ApiKeyRow, ApiKeySecretRow
from gateway.store.records import KeySecret

ACTOR = "gateway"


@dataclass(frozen=True, slots=True)
class HashRenewal:
    """The secret of the key that is stored as `old_digest` is to be stored as `renewed`."""

    key_id: UUID
    old_digest: bytes
    renewed: KeySecret


async def renew_hashes(database: Database, renewals: abc.Sequence[HashRenewal]) -> int:
    """The secrets are stored as renewed, in one change. Returns how many were not before; a rotated-out one stays out.

    A change of policy, though nothing that a key may do is different: whoever holds the old hash has to read again.
    """
    async with open_change(database, Change(ACTOR)) as tx:
        renewed: list[HashRenewal] = []
        for renewal in sorted(renewals, key=lambda renewal: renewal.key_id):
            found = await tx.session.scalars(
                update(ApiKeySecretRow)
                .where(ApiKeySecretRow.key_id == renewal.key_id, ApiKeySecretRow.hmac == renewal.old_digest)
                .values(hmac=renewal.renewed.digest, pepper_version=renewal.renewed.pepper_version)
                .returning(ApiKeySecretRow.key_id)
            )
            renewed += [renewal] if found.one_or_none() is not None else []
        if not renewed:
            return 0
        key_ids = [renewal.key_id for renewal in renewed]
        await tx.session.execute(
            update(ApiKeyRow).where(ApiKeyRow.id.in_(key_ids)).values(revision=tx.revision, updated_at=tx.now)
        )
        after = {"keys": len(renewed), "pepper_version": max(item.renewed.pepper_version for item in renewed)}
        await tx.record(Changed("apiKeys.rehash", "apiKeys/-", key_ids[0], None, after))
        return len(renewed)
