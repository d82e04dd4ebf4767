"""Resource names: the grammar of paths, parsed once into what the store takes.

`organizations/acme/teams/search/apiKeys/9fKq…` is a `ResourcePath`. Knows the form of a name, not what exists;
a segment may be `-`, any, only where the caller says so (AIP-159).
"""

import re

from gateway.errors import FieldViolation, InvalidFieldError
from gateway.store.records import ANY, ResourcePath

KINDS = ("organizations", "teams", "apiKeys")
SLUG = re.compile(r"[a-z][a-z0-9-]{0,62}")
SLUG_RULE = "must be 1 to 63 of a-z, 0-9 and -, beginning with a letter"
PUBLIC_ID = re.compile(r"[0-9A-Za-z]{12}")


def parse_organization(text: str, field: str, *, wildcards: bool = False) -> ResourcePath:
    """Raises InvalidFieldError if `text` is not the name of an organization, as do its siblings for theirs."""
    return ResourcePath(*_ids(text, field, KINDS[:1], wildcards=wildcards))


def parse_team(text: str, field: str, *, wildcards: bool = False) -> ResourcePath:
    return ResourcePath(*_ids(text, field, KINDS[:2], wildcards=wildcards))


def parse_team_or_platform(text: str, field: str) -> ResourcePath:
    """Where a key can be made: a team or the platform, which is `-` or nothing."""
    return ResourcePath(None) if text in ("", ANY) else parse_team(text, field)


def parse_api_key(text: str, field: str, *, wildcards: bool = False) -> ResourcePath:
    """A team's key."""
    return ResourcePath(*_ids(text, field, KINDS, wildcards=wildcards))


def parse_any_api_key(text: str, field: str, *, wildcards: bool = False) -> ResourcePath:
    """A team's key or, where the name has that part only, a platform key: `apiKeys/9fKq…`."""
    if not text.startswith("apiKeys/"):
        return parse_api_key(text, field, wildcards=wildcards)
    (public_id,) = _ids(text, field, KINDS[2:], wildcards=False)
    return ResourcePath(None, None, public_id)


def parse_key_parent(text: str, field: str) -> ResourcePath:
    """Teams, with wildcards; or the platform, which is `-` or nothing."""
    return ResourcePath(None) if text in ("", ANY) else parse_team(text, field, wildcards=True)


def parse_node(text: str, field: str, *, wildcards: bool = False) -> ResourcePath:
    """An organization, a team or a key, by the depth of `text`."""
    depth = min(max(1, (text.count("/") + 1) // 2), len(KINDS))
    return ResourcePath(*_ids(text, field, KINDS[:depth], wildcards=wildcards))


def parse_quota_policy(text: str, field: str) -> tuple[ResourcePath, str]:
    """The node that the policy governs, and the policy's own id."""
    node, _, policy = text.rpartition("/quotaPolicies/")
    if not SLUG.fullmatch(policy):
        raise invalid(field, "must be the name of an organization, team or key, followed by /quotaPolicies/*")
    return parse_node(node, field), policy


def parse_single(text: str, field: str, kind: str) -> str:
    """The id of `<kind>/<id>`, which is below nothing."""
    (single_id,) = _ids(text, field, (kind,), wildcards=False)
    return single_id


def parse_priority_class(text: str, field: str) -> str:
    """The id of `priorityClasses/<id>`."""
    (class_id,) = _ids(text, field, ("priorityClasses",), wildcards=False)
    return class_id


def class_name(class_id: str) -> str:
    """The resource name of a priority class."""
    return f"priorityClasses/{class_id}"


def check_slug(text: str, field: str) -> str:
    """`text`, which can be the last segment of a new resource's name. Raises InvalidFieldError."""
    if not SLUG.fullmatch(text):
        raise invalid(field, SLUG_RULE)
    return text


def invalid(field: str, description: str) -> InvalidFieldError:
    return InvalidFieldError(FieldViolation(field, description))


def _ids(text: str, field: str, kinds: tuple[str, ...], *, wildcards: bool) -> tuple[str, ...]:
    parts = text.split("/")
    if len(parts) != 2 * len(kinds) or tuple(parts[0::2]) != kinds:
        raise invalid(field, f"must be a name like {'/'.join(f'{kind}/*' for kind in kinds)}")
    for kind, segment in zip(kinds, parts[1::2], strict=True):
        pattern = PUBLIC_ID if kind == "apiKeys" else SLUG
        if not pattern.fullmatch(segment) and not (wildcards and segment == ANY):
            raise invalid(field, f"{segment!r} is not the id of one of {kind}")
    return tuple(parts[1::2])
