"""Whose a row is, for traces that do not say.

    column           the file's own tenants, or the last word of the file's name where it has none (a service)
    conversation:N   N equal tenants; all turns of a conversation belong to one, so that its prefix stays with it
    zipf:N           N tenants, the k-th with 1/k of the first one's requests
    single           one tenant

Keys are hashed with CRC-32, which is the same for every version and platform.
"""

from bisect import bisect_left
from itertools import accumulate
from zlib import crc32

from engine.sim.traffic.errors import TrafficSpecError
from engine.sim.traffic.raw_rows import RawRow, TenantRule

MAX_TENANTS = 1_000_000


def tenant_rule(spec: str, trace: str, organization: str | None = None) -> TenantRule:
    """The rule that `spec` names, for the trace of that name. Raises TrafficSpecError."""
    kind, _, argument = spec.partition(":")
    org = organization or default_organization(trace)
    if kind in ("column", "single") and not argument:
        return _by_column(organization, trace) if kind == "column" else lambda row: f"{org}/all"
    if kind in ("conversation", "zipf"):
        if not argument.isdecimal() or not 1 <= int(argument) <= MAX_TENANTS:
            raise TrafficSpecError(spec, f"{kind} needs a number of tenants from 1 to {MAX_TENANTS}, as in {kind}:8")
        names = [f"{org}/t{number:0{len(argument)}d}" for number in range(1, int(argument) + 1)]
        return _by_conversation(names, trace) if kind == "conversation" else _by_popularity(names, trace)
    raise TrafficSpecError(spec, "a tenant rule is one of column, conversation:N, zipf:N, single")


def default_organization(trace: str) -> str:
    """What comes before the last word of the name, so that the files of one source are teams of one organization."""
    return trace.rpartition("_")[0] or trace


def _by_column(organization: str | None, trace: str) -> TenantRule:
    service = f"{organization or default_organization(trace)}/{trace.rpartition('_')[2]}"
    org = organization or trace

    def rule(row: RawRow) -> str:
        tenant = row.tenant
        if tenant is None:
            return service
        return tenant if "/" in tenant else f"{org}/{tenant}"

    return rule


def _by_conversation(names: list[str], trace: str) -> TenantRule:
    num_tenants = len(names)

    def rule(row: RawRow) -> str:
        key = row.conversation if row.conversation is not None else f"{trace}:{row.row}"
        return names[crc32(key.encode()) % num_tenants]

    return rule


def _by_popularity(names: list[str], trace: str) -> TenantRule:
    harmonic = list(accumulate(1 / rank for rank in range(1, len(names) + 1)))
    shares = [value / harmonic[-1] for value in harmonic]

    def rule(row: RawRow) -> str:
        return names[bisect_left(shares, crc32(f"{trace}:{row.row}".encode()) / 2**32)]

    return rule
