"""Brings parameters to the device and into the dtype that they run in, and refuses those that no model can run with."""

from collections import abc

import torch
from torch import Tensor

from engine.model.device_memory import free_memory, is_out_of_memory
from engine.model.errors import ModelFileError, ModelMemoryError
from engine.model.parameters import Shape
from engine.model.weights import WeightSource, check_stored


class WeightReader:
    """Reads the parameters `expected` of a model; counts them and tells how far it is, from 0 to 1.

    Before any is read, all are known to be there, in their shapes, with no other beside them, and to fit into what is
    free on the device. Raises ModelFileError, UnsupportedModelError and ModelMemoryError.
    """

    def __init__(
        self,
        source: WeightSource,
        expected: abc.Mapping[str, Shape],
        device: torch.device,
        dtype: torch.dtype,
        on_progress: abc.Callable[[float], None],
    ) -> None:
        check_stored(source, expected)
        self.num_parameters = sum(torch.Size(shape).numel() for shape in expected.values())
        self._on_progress = on_progress
        self._source = source
        self._device = device
        self._dtype = dtype
        self._num_read = 0
        num_bytes, free_bytes = self.num_parameters * dtype.itemsize, free_memory(device)
        if num_bytes > free_bytes:
            raise ModelMemoryError(f"the weights of {source.path.name}", num_bytes, str(device), free_bytes)

    def weight(self, name: str, shape: Shape) -> Tensor:
        """The parameter `name`. Raises ModelFileError if it cannot be read or holds what is not finite."""
        stored = self._source.stored[name]
        assert stored.shape == shape
        try:
            weight = self._source.weight(name).to(self._device, self._dtype)
        except (MemoryError, RuntimeError) as err:
            if not is_out_of_memory(err):
                raise
            num_bytes = torch.Size(shape).numel() * self._dtype.itemsize
            what = f"tensor {stored.name!r} and those after it"
            raise ModelMemoryError(what, num_bytes, str(self._device), free_memory(self._device)) from err
        # Nothing is allocated for it, and what is no number comes through.
        if not all(bool(extreme.isfinite()) for extreme in weight.aminmax()):
            dtype = str(self._dtype).removeprefix("torch.")
            raise ModelFileError(stored.path, f"tensor {stored.name!r} holds values that are not finite in {dtype}")
        self._num_read += weight.numel()
        self._on_progress(self._num_read / self.num_parameters)
        return weight
