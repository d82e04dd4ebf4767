"""The numbers of a step on their way to the device: packed side by side, sent in one copy.

What is put in the same order with the same sizes lies at the same addresses in every step, which a CUDA graph needs.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 2  # of eight bytes: kernels are compiled for addresses that are a multiple of 16


class StepColumns:
    """`capacity` numbers of int64 in all. The host's side is page-locked where the device is CUDA."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self._host = torch.zeros(capacity, dtype=torch.int64, pin_memory=is_cuda)
        self._array: NDArray[np.int64] = self._host.numpy()
        self._device = torch.zeros(capacity, dtype=torch.int64, device=device)
        self._num_used = 0
        self._sent = torch.cuda.Event() if is_cuda else None  # type: ignore[no-untyped-call]  # torch

    @property
    def num_free(self) -> int:
        return len(self._array) - self._num_used

    def begin(self) -> None:
        """What was put before is given up. Waits for the copy that still reads it."""
        if self._sent is not None:
            self._sent.synchronize()
        self._num_used = 0

    def put(self, array: NDArray[np.int64]) -> Tensor:
        """Where on the device `array` is after `send`, in its shape. Raises ValueError if there is no room for it."""
        begin, end = self._num_used, self._num_used + array.size
        if end > len(self._array):
            raise ValueError(f"{array.size} numbers do not fit behind {begin} in {len(self._array)}")
        self._array[begin:end] = array.ravel()
        self._num_used = -(-end // _ALIGNMENT) * _ALIGNMENT
        return self._device[begin:end].view(array.shape)

    def send(self) -> None:
        """Everything that was put is on the device, as far as what is launched from now on can tell."""
        self._device[: self._num_used].copy_(self._host[: self._num_used], non_blocking=True)
        if self._sent is not None:
            self._sent.record()
