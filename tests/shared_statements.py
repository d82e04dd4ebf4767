"""Statements that are compiled once in a process, however many pools its tests open.

SQLAlchemy keeps them by pool and dialect, which is right for a process that has one; here each test would compile all
that it asks anew, which takes longer than the asking.

What is set is private to SQLAlchemy 2.1. It is read first, so that a version without it fails here.
"""

from collections import abc
from contextlib import contextmanager

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from gateway.store import db


@contextmanager
def shared_statements(first: AsyncEngine) -> abc.Iterator[None]:
    """Inside the block every new `Database` has the dialect of `first`, which has connected, and what was compiled."""
    dialect, compiled = first.sync_engine.dialect, first.sync_engine._compiled_cache

    def create(*arguments: object, **options: object) -> AsyncEngine:
        engine = create_async_engine(*arguments, **options)
        inner = engine.sync_engine
        assert inner.pool._dialect is inner.dialect
        assert type(inner._compiled_cache) is type(compiled)
        inner.dialect = inner.pool._dialect = dialect
        inner._compiled_cache = compiled
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(db, "create_async_engine", create)
        yield
