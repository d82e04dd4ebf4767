"""What an audit event changed, in words: each setting that differs, and grants with their end and reason."""

from collections import abc

from gateway.cli.differences import value_text


def changes(before: abc.Mapping[str, object], after: abc.Mapping[str, object], parent: str = "") -> abc.Iterator[str]:
    """`weight: 1.0 → 2.0`; of an engine, whose settings are below its address, `unix:/e.sock mode: …`."""
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        path = f"{parent} {name}".strip()
        if isinstance(old, dict) or isinstance(new, dict):
            yield from changes(_mapping(old), _mapping(new), path)
        elif name == "temporary_quotas":
            yield from _grant_changes(_items(old), _items(new))
        else:
            yield f"{path}: {value_text(old)} → {value_text(new)}"


def settings(document: abc.Mapping[str, object]) -> abc.Iterator[str]:
    """Of what was made or is gone, what it had that is not nothing."""
    return (f"{name} {value_text(value)}" for name, value in document.items() if value)


def _grant_changes(old: list[dict[str, object]], new: list[dict[str, object]]) -> abc.Iterator[str]:
    """Which grants there are now, and which have ended: with until when, why and by what id."""
    yield from (f"granted {_grant_text(grant)}" for grant in new if grant not in old)
    yield from (f"ended {_grant_text(grant)}" for grant in old if grant not in new)


def _grant_text(grant: dict[str, object]) -> str:
    raised = f"{str(grant.get('dimension') or grant.get('calendar')).lower()}={grant.get('amount')}"
    if grant.get("burst"):
        raised += f":burst={grant['burst']}"
    if grant.get("model"):
        raised += f":model={grant['model']}"
    until = value_text(grant.get("expires_at")).strip('"')
    return f"{raised} until {until}: {value_text(grant.get('reason'))} (id {grant.get('id')})"


def _mapping(value: object) -> abc.Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _items(value: object) -> list[dict[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
