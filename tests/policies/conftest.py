"""Strangers' policies, installed beside our own."""

import importlib
import sys
from pathlib import Path

import pytest

from tests.policies.distributions import install_faulty, install_stranger


@pytest.fixture(scope="session")
def stranger_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory into which the stranger's package was installed."""
    path = tmp_path_factory.mktemp("installed")
    install_stranger(path, tmp_path_factory.mktemp("scratch"))
    return path


@pytest.fixture
def stranger(stranger_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stranger's package is on the import path."""
    return _on_path(stranger_directory, "shortest_prompt", monkeypatch)


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory on the import path that holds the faulty distribution."""
    install_faulty(tmp_path)
    return _on_path(tmp_path, "faulty_policies", monkeypatch)


def _on_path(path: Path, module: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(path)
    monkeypatch.delitem(sys.modules, module, raising=False)
    importlib.invalidate_caches()
    return path
