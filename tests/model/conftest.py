from collections import abc

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> abc.Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
