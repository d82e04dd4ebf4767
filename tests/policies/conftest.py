"""A stranger's policies, installed beside our own."""

import importlib
import sys
from pathlib import Path

import pytest

from tests.policies.stranger import install


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory on the import path that the stranger's distribution is installed in."""
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "stranger_policies", raising=False)
    importlib.invalidate_caches()
    return tmp_path
