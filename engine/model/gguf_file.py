"""A GGUF file: its metadata, its list of tensors, and each tensor as float32.

Reads the header itself, with every length checked against the file, because the package's reader takes seconds for a
large vocabulary; the package decodes the forms that have no kernel of their own. Knows nothing of models. Source: the
GGUF specification, versions 2 and 3, little-endian.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from engine.kernels.cpu.quantized_blocks import DECODED, decode
from engine.model.errors import ModelFileError, UnsupportedModelError

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`shape` is rows first, as numpy and torch count; [offset, offset + num_bytes) of the file holds the data."""

    name: str
    shape: tuple[int, ...]
    quantization: GGMLQuantizationType
    offset: int
    num_bytes: int


class GgufFile:
    """An open GGUF file; `metadata` and `tensors` are read, the data is mapped.

    Raises ModelFileError if it is missing, shorter than it says, or not GGUF; UnsupportedModelError for a version or a
    quantization that is not known here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as err:  # ValueError: an empty file cannot be mapped
            raise ModelFileError(path, f"cannot be read ({err})") from err
        header = _HeaderReader(path, self._data)
        try:
            self.metadata, self.tensors = header.read()
        except (UnicodeDecodeError, OverflowError, MemoryError, RecursionError) as err:
            raise ModelFileError(path, "the GGUF header is corrupt or cut off") from err

    def tensor(self, name: str) -> NDArray[np.float32]:
        """The tensor `name`, decoded. Raises ModelFileError if the file lacks it."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ModelFileError(self.path, f"has no tensor {name!r}")
        raw = np.frombuffer(self._data, dtype=np.uint8, count=tensor.num_bytes, offset=tensor.offset)
        if tensor.quantization.name in DECODED:
            _, block_bytes = GGML_QUANT_SIZES[tensor.quantization]
            return decode(raw.reshape(-1, block_bytes), tensor.quantization.name).reshape(tensor.shape)
        num_rows = math.prod(tensor.shape[:-1])
        try:
            decoded = dequantize(raw.reshape(num_rows, -1), tensor.quantization)
        except NotImplementedError as err:
            problem = f"quantization {tensor.quantization.name} of tensor {name!r} is not supported"
            raise UnsupportedModelError(self.path, problem) from err
        return decoded.astype(np.float32, copy=False).reshape(tensor.shape)


class _HeaderReader:
    """A cursor over the mapped file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._position = 0

    def read(self) -> tuple[dict[str, Any], dict[str, GgufTensor]]:  # Any: GGUF values of many types
        if self._take(4) != MAGIC:
            raise ModelFileError(self._path, "is not a GGUF file")
        version = self._scalar("<I")
        if version not in SUPPORTED_VERSIONS:
            raise UnsupportedModelError(self._path, f"GGUF version {version} is not supported")
        num_tensors = self._scalar("<Q")
        num_entries = self._scalar("<Q")
        metadata = {}
        for _ in range(num_entries):
            key = self._string()
            metadata[key] = self._value(self._scalar("<I"))
        if metadata.get("split.count", 1) not in (0, 1):
            raise UnsupportedModelError(self._path, "a GGUF model split over several files is not supported")
        entries = [self._tensor_entry() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelFileError(self._path, f"the GGUF header is corrupt: alignment {alignment!r}")
        data_start = math.ceil(self._position / alignment) * alignment
        return metadata, {entry[0]: self._located(*entry, data_start) for entry in entries}

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        num_dimensions = self._scalar("<I")
        shape = tuple(reversed([self._scalar("<Q") for _ in range(num_dimensions)]))
        return name, shape, self._scalar("<I"), self._scalar("<Q")

    def _located(self, name: str, shape: tuple[int, ...], kind: int, offset: int, data_start: int) -> GgufTensor:
        try:
            quantization = GGMLQuantizationType(kind)
        except ValueError as err:
            raise UnsupportedModelError(self._path, f"quantization {kind} of tensor {name!r} is unknown") from err
        block_elements, block_bytes = GGML_QUANT_SIZES[quantization]
        if not shape or 0 in shape or shape[-1] % block_elements:
            raise ModelFileError(self._path, f"tensor {name!r} of shape {shape} cannot be {quantization.name}")
        num_bytes = math.prod(shape) // block_elements * block_bytes
        if data_start + offset + num_bytes > len(self._data):
            raise ModelFileError(self._path, f"is cut off: tensor {name!r} ends behind the end of the file")
        return GgufTensor(name, shape, quantization, data_start + offset, num_bytes)

    def _value(self, kind: int) -> Any:  # Any: the file says which type follows
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(self._scalar("<I"), self._scalar("<Q"))
        if kind not in _SCALARS:
            raise ModelFileError(self._path, f"the GGUF header is corrupt: value type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self, kind: int, length: int) -> list[Any]:  # Any: the file says which type follows
        if length > len(self._data):
            raise ModelFileError(self._path, f"the GGUF header is corrupt: an array of {length} entries")
        if kind == _STRING:
            return self._strings(length)
        if kind not in _SCALARS:
            return [self._value(kind) for _ in range(length)]
        code = _SCALARS[kind][1]
        return list(struct.unpack(f"<{length}{code}", self._take(length * struct.calcsize(f"<{code}"))))

    def _strings(self, length: int) -> list[str]:
        """As many calls of `_string`, which a vocabulary has a hundred thousand of."""
        data, position, texts = self._data, self._position, []
        try:
            for _ in range(length):
                begin = position + _LENGTH.size
                position = begin + _LENGTH.unpack_from(data, position)[0]
                texts.append(data[begin:position].decode())
        except struct.error:  # no length is where one should be
            position = len(data) + 1
        if position > len(data):
            raise ModelFileError(self._path, "the GGUF header is corrupt or cut off")
        self._position = position
        return texts

    def _string(self) -> str:
        return self._take(self._scalar("<Q")).decode()

    def _scalar(self, code: str) -> Any:  # Any: the code says which type
        return struct.unpack(code, self._take(struct.calcsize(code)))[0]

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if end > len(self._data):
            raise ModelFileError(self._path, "the GGUF header is corrupt or cut off")
        taken = self._data[self._position : end]
        self._position = end
        return taken
