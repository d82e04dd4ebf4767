"""The worlds of other tests, in which the ledger is looked at."""

from tests.cli.conftest import command_line, service
from tests.gateway.conftest import closed_world, engine, spans, tenant, world

__all__ = ["closed_world", "command_line", "engine", "service", "spans", "tenant", "world"]
