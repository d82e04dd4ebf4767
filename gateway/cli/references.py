"""How people write resources on the command line, and the names that the API wants.

`acme` is an organization, `acme/search` a team, `acme/search/9fKq…` a key; a key may also be given by its public id
alone, or by its beginning up to the secret (`ef_live_9fKq…`). Full resource names pass as they are.
"""

import re

from gateway.cli.errors import UsageError

SEGMENT = r"[a-z][a-z0-9-]*|-"
ORGANIZATION = re.compile(rf"(?:organizations/)?({SEGMENT})")
TEAM = re.compile(rf"(?:organizations/)?({SEGMENT})/(?:teams/)?({SEGMENT})")
API_KEY = re.compile(rf"(?:organizations/)?({SEGMENT})/(?:teams/)?({SEGMENT})/(?:apiKeys/)?([0-9A-Za-z]{{12}}|-)")
PLATFORM_KEY = re.compile(r"apiKeys/[0-9A-Za-z]{12}")
PUBLIC_ID = re.compile(r"(?:ef_live_)?([0-9A-Za-z]{12})(?:_\w*)?")


def organization_name(text: str) -> str:
    """`organizations/acme` of `acme`. Raises UsageError, as do the others."""
    if match := ORGANIZATION.fullmatch(text):
        return f"organizations/{match[1]}"
    raise UsageError(f"{text!r} is no organization: write acme")


def team_name(text: str) -> str:
    """`organizations/acme/teams/search` of `acme/search`."""
    if match := TEAM.fullmatch(text):
        return f"organizations/{match[1]}/teams/{match[2]}"
    raise UsageError(f"{text!r} is no team: write acme/search")


def split_team(text: str) -> tuple[str, str]:
    """The name of the organization and the team's own id."""
    parent, _, team = team_name(text).rpartition("/teams/")
    return parent, team


def api_key_name(text: str) -> str:
    """The key's name; with `-` for organization and team where only its public id is given.

    A platform key is known by its full name only.
    """
    if PLATFORM_KEY.fullmatch(text):
        return text
    if match := PUBLIC_ID.fullmatch(text):
        return f"organizations/-/teams/-/apiKeys/{match[1]}"
    if match := API_KEY.fullmatch(text):
        return f"organizations/{match[1]}/teams/{match[2]}/apiKeys/{match[3]}"
    raise UsageError(f"{text!r} is no key: write its public id, the 12 characters after ef_live_")


def platform_key_name(text: str) -> str:
    """`apiKeys/9fKq…` of whatever names a key by its public id; empty for a key that is named with its team."""
    match = PUBLIC_ID.fullmatch(text)
    return f"apiKeys/{match[1]}" if match else ""


def node_name(text: str) -> str:
    """Of whatever can have a quota policy: `acme`, `acme/search` or `acme/search/9fKq…`."""
    for parse in (organization_name, team_name, api_key_name):
        try:
            return parse(text)
        except UsageError:
            continue
    raise UsageError(f"{text!r} has no quota policy: write acme, acme/search or acme/search/KEY")


def quota_policy_name(text: str) -> str:
    """The policy of a node, or a policy by its full name."""
    if "/quotaPolicies/" in text:
        return text
    return f"{node_name(text)}/quotaPolicies/default"


def class_name(text: str) -> str:
    """`priorityClasses/batch` of `batch`."""
    return f"priorityClasses/{text.removeprefix('priorityClasses/')}"
