"""Fixtures for tests that compute: one thread, except where a test is about several."""

from collections import abc

import pytest
import torch

__all__ = ["one_thread", "torch_threads"]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> abc.Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def torch_threads(one_thread: None) -> abc.Iterator[abc.Callable[[int], None]]:
    """Sets the number of threads, for this test only."""
    num_threads = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(num_threads)
