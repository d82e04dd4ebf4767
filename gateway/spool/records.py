"""Byte records in a file that may end anywhere, or be damaged anywhere: framing, and what can be read back of it.

A record is a marker, its length, a CRC-32 of length and payload, and the payload. The marker begins with a byte that no
UTF-8 text holds, so that reading goes on behind damage at the next record. Pure.
"""

import struct
import zlib
from collections import abc
from dataclasses import dataclass

MARKER = b"\xf5EVU"
_FRAME = struct.Struct("<II")
HEADER_BYTES = len(MARKER) + _FRAME.size
MAX_PAYLOAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Scan:
    """What a file holds. Every payload is whole.

    `num_torn_bytes` follow the last whole record, as where a process died while it wrote; `num_damaged_bytes` lie
    before it and were written once.
    """

    payloads: tuple[bytes, ...]
    num_torn_bytes: int
    num_damaged_bytes: int


def frame(payload: bytes) -> bytes:
    """The record of `payload`. Raises ValueError where it is longer than MAX_PAYLOAD_BYTES."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a record holds at most {MAX_PAYLOAD_BYTES} bytes, not {len(payload)}")
    return MARKER + _FRAME.pack(len(payload), _checksum(payload)) + payload


def scan(data: bytes) -> Scan:
    """Every record of `data` that is whole, in order."""
    payloads: list[bytes] = []
    end = num_read_bytes = 0
    for start, payload in _payloads(data):
        payloads.append(payload)
        end = start + HEADER_BYTES + len(payload)
        num_read_bytes += HEADER_BYTES + len(payload)
    return Scan(tuple(payloads), len(data) - end, end - num_read_bytes)


def _payloads(data: bytes) -> abc.Iterator[tuple[int, bytes]]:
    at = data.find(MARKER)
    while at >= 0:
        payload = _payload_at(data, at)
        if payload is None:
            at = data.find(MARKER, at + 1)
            continue
        yield at, payload
        at = data.find(MARKER, at + HEADER_BYTES + len(payload))


def _payload_at(data: bytes, at: int) -> bytes | None:
    """None where the record at that place is not whole."""
    start = at + HEADER_BYTES
    if start > len(data):
        return None
    length, checksum = _FRAME.unpack_from(data, at + len(MARKER))
    if length > MAX_PAYLOAD_BYTES or start + length > len(data):
        return None
    payload = data[start : start + length]
    return payload if _checksum(payload) == checksum else None


def _checksum(payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(len(payload).to_bytes(4, "little")))
