"""The gateway under test is that of the gateway's own tests."""

from tests.gateway.conftest import (
    _short_patience,
    closed_world,
    engine,
    module_tenant,
    module_world,
    shared_tenant,
    shared_world,
    spans,
    world,
)

__all__ = [
    "_short_patience",
    "closed_world",
    "engine",
    "module_tenant",
    "module_world",
    "shared_tenant",
    "shared_world",
    "spans",
    "world",
]
