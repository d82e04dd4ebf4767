"""Names as people write them in a form and as the Admin API has them; and the mark for what there is not."""

from gateway.store.records import ResourcePath

NOTHING = "–"
NODE_KINDS = ("organizations", "teams", "apiKeys")


def dimension_text(dimension: str) -> str:
    """`total tokens` of `total_tokens` or `TOTAL_TOKENS`."""
    return dimension.lower().replace("_", " ")


def resource_name(text: str) -> str:
    """`organizations/acme/teams/search` of `acme/search`; a name that is whole already as it is.

    Whatever else it is, the Admin API refuses it in its own words.
    """
    parts = text.split("/")
    if text.startswith(("organizations/", "apiKeys/")) or len(parts) > len(NODE_KINDS):
        return text
    return "/".join(f"{kind}/{part}" for kind, part in zip(NODE_KINDS, parts, strict=False))


def team_path(name: str) -> ResourcePath | None:
    """Of `organizations/acme/teams/search`; None of anything else."""
    parts = name.split("/")
    return ResourcePath(parts[1], parts[3]) if tuple(parts[0::2]) == NODE_KINDS[:2] and len(parts) == 4 else None
