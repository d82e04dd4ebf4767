"""GGUF's quantized blocks: bytes for a matrix, and what they stand for, worked out from the description of the formats.

The package that the engine decodes with is not asked. Source: `block_*` and `dequantize_row_*` of ggml.
"""

import zlib

import gguf
import numpy as np
from numpy.typing import NDArray

K_QUANTS = ("Q4_K", "Q6_K")
BLOCK_SIZES = {"F32": 1, "F16": 1, "BF16": 1, "Q8_0": 32, "Q4_0": 32, "Q4_1": 32, "Q4_K": 256, "Q6_K": 256}

Floats = NDArray[np.float32]


def encode(kind: str, name: str, values: Floats) -> tuple[NDArray[np.generic], str]:
    """Bytes of a matrix and their kind, another one where its rows are no whole blocks, as llama.cpp has it.

    The package cannot write K-quants: those are random, and always the same for a `name`.
    """
    if values.shape[1] % BLOCK_SIZES[kind]:
        kind = "Q8_0" if values.shape[1] % 32 == 0 else "F32"
    if kind not in K_QUANTS:
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind]), kind
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    blocks = (values.shape[0], values.shape[1] // 256)
    parts = _random_q4_k(rng, blocks) if kind == "Q4_K" else _random_q6_k(rng, blocks)
    return np.concatenate(parts, axis=-1).reshape(values.shape[0], -1), kind


def decode(kind: str, raw: NDArray[np.generic]) -> Floats:
    """What `raw` [rows, ...] stands for, [rows, columns]."""
    if kind in ("F32", "F16"):
        return raw.astype(np.float32)
    if kind == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    blocks = [_DECODERS[kind](block) for block in raw.reshape(-1, size)]
    return np.concatenate(blocks).astype(np.float32).reshape(len(raw), -1)


def _half(block: NDArray[np.uint8], at: int) -> np.float32:
    return np.float32(block[at : at + 2].view(np.float16)[0])


def _q8_0(block: NDArray[np.uint8]) -> Floats:
    return _half(block, 0) * block[2:].view(np.int8).astype(np.float32)


def _q4_0(block: NDArray[np.uint8]) -> Floats:
    return _half(block, 0) * _halves(block[2:]) - _half(block, 0) * np.float32(8)


def _q4_1(block: NDArray[np.uint8]) -> Floats:
    return _half(block, 0) * _halves(block[4:]) + _half(block, 2)


def _halves(numbers: NDArray[np.uint8]) -> Floats:
    """The lower four bits of all bytes, then the upper ones."""
    return np.concatenate([numbers & 15, numbers >> 4]).astype(np.float32)


def _q4_k(block: NDArray[np.uint8]) -> Floats:
    """Eight runs of 32, each with six bits of scale and six of least value; two runs share their bytes."""
    scale, least, packed = _half(block, 0), _half(block, 2), [int(byte) for byte in block[4:16]]
    runs = []
    for run in range(8):
        if run < 4:
            scale_bits, least_bits = packed[run] & 63, packed[run + 4] & 63
        else:
            scale_bits = (packed[run + 4] & 15) | (packed[run - 4] >> 6 << 4)
            least_bits = (packed[run + 4] >> 4) | (packed[run] >> 6 << 4)
        begin = 16 + 32 * (run // 2)
        numbers = _halves(block[begin : begin + 32]).reshape(2, 32)[run % 2]
        runs.append(scale * np.float32(scale_bits) * numbers - least * np.float32(least_bits))
    return np.concatenate(runs)


def _q6_k(block: NDArray[np.uint8]) -> Floats:
    """Four low bits, two high bits, a scale for each sixteen."""
    place = np.arange(256)
    half, quarter, column = place // 128, place % 128 // 32, place % 32
    low = block[64 * half + 32 * (quarter % 2) + column].astype(int) >> (4 * (quarter // 2)) & 15
    high = block[128 + 32 * half + column].astype(int) >> (2 * quarter) & 3
    scales = block[192:208].view(np.int8).astype(np.float32)[place // 16]
    return _half(block, 208) * scales * ((low | high << 4) - 32).astype(np.float32)


_DECODERS = {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q4_K": _q4_k, "Q6_K": _q6_k}


def _random_q4_k(rng: np.random.Generator, blocks: tuple[int, int]) -> list[NDArray[np.uint8]]:
    scales = np.stack([rng.uniform(5e-4, 1e-3, blocks), rng.uniform(4e-3, 8e-3, blocks)], axis=-1)
    return [scales.astype(np.float16).view(np.uint8), rng.integers(0, 256, (*blocks, 140), dtype=np.uint8)]


def _random_q6_k(rng: np.random.Generator, blocks: tuple[int, int]) -> list[NDArray[np.uint8]]:
    scales = rng.uniform(1e-4, 2e-4, (*blocks, 1)).astype(np.float16).view(np.uint8)
    return [rng.integers(0, 256, (*blocks, 208), dtype=np.uint8), scales]
