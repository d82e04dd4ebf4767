"""Statements on priority classes: `priority`, `default` and `batch` are there from the first migration on."""

from collections import abc

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.store.errors import InvalidValueError
from gateway.store.models import PriorityClassRow


async def require_classes(session: AsyncSession, field: str, names: abc.Iterable[str]) -> None:
    """Raises InvalidValueError, naming the field, unless every class exists."""
    wanted = set(names)
    known = set(await session.scalars(select(PriorityClassRow.name).where(PriorityClassRow.name.in_(wanted))))
    for name in sorted(wanted - known):
        raise InvalidValueError(field, f"there is no priority class {name!r}")
