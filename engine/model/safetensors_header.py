"""The header of a safetensors file, read only to name the tensor at which a damaged file ends.

Source: the safetensors format: the header's length (8 bytes, little-endian), the header (JSON), the data.
"""

import json
import struct
from pathlib import Path

_LENGTH = struct.Struct("<Q")


def first_tensor_cut_off(path: Path) -> str | None:
    """The first tensor whose data the file does not hold to its end; None if that cannot be told."""
    try:
        with path.open("rb") as file:
            (header_bytes,) = _LENGTH.unpack(file.read(_LENGTH.size))
            if header_bytes > path.stat().st_size:
                return None
            header = json.loads(file.read(header_bytes))
        data_bytes = path.stat().st_size - _LENGTH.size - header_bytes
        begin_by_name = {
            name: entry["data_offsets"][0]
            for name, entry in header.items()
            if name != "__metadata__" and entry["data_offsets"][1] > data_bytes
        }
    except (OSError, ValueError, struct.error, AttributeError, IndexError, KeyError, TypeError):
        return None
    return min(begin_by_name, key=begin_by_name.__getitem__, default=None)
