"""How the attention kernels are cut into programs: sizes of tiles, warps and pipeline stages. Imports no Triton.

The defaults fit the shared memory of every card from sm_80 on. `tuning` measures better ones on the card that it finds.
"""

from dataclasses import dataclass

import torch

# Said at each launch, because Triton's own default changes from version to version.
OPTIONS = {"enable_fp_fusion": True}
MIN_DOT = 16  # the smallest side of a matrix product on tensor cores
MAX_SPLITS = 64
_MIN_SPLIT_KEYS = 128  # fewer are not worth a program of their own
_WAVES = 2  # programs per processor that hide each other's loads


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What a kernel is compiled for. `num_shared` query heads read each key-value head."""

    num_shared: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Launch:
    """rows [of a tile: queries times the heads that share a key], keys [read at a time]: powers of two, at least 16."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Launches:
    """For chunks of several tokens, and for single tokens."""

    prefill: Launch
    decode: Launch


def default_launches(shape: AttentionShape) -> Launches:
    """What is sure to fit."""
    decode_rows = max(MIN_DOT, next_power_of_2(shape.num_shared))
    if shape.dtype == torch.float32:
        keys = 16 if shape.head_dim > 64 else 32
        prefill_rows = max(MIN_DOT if shape.head_dim > 64 else 32, decode_rows)
        return Launches(Launch(prefill_rows, keys, 4, 1), Launch(decode_rows, keys, 4, 2))
    if shape.head_dim > 128:
        return Launches(Launch(max(64, decode_rows), 32, 8, 2), Launch(decode_rows, 32, 4, 2))
    prefill_keys = 32 if shape.head_dim > 64 else 64
    return Launches(Launch(max(64, decode_rows), prefill_keys, 4, 3), Launch(decode_rows, 64, 4, 3))


def queries_per_tile(shape: AttentionShape, launch: Launch) -> int:
    """Tokens of one chunk that a program attends; `launch.rows` holds at least one with all its heads."""
    return launch.rows // shape.num_shared


def choose_num_splits(num_decodes: int, num_kv_heads: int, max_keys: int, num_processors: int) -> int:
    """Programs among which the keys of one token are divided: enough for the whole device, a power of two.

    Depends on nothing that changes from step to step at the same number of tokens, so that a CUDA graph may hold it.
    """
    wanted = -(-_WAVES * num_processors // max(1, num_decodes * num_kv_heads))
    possible = max(1, max_keys // _MIN_SPLIT_KEYS)
    return min(MAX_SPLITS, next_power_of_2(min(wanted, possible)))


def next_power_of_2(number: int) -> int:
    """The least power of two that is no less than `number`, which is at least 1."""
    return 1 << (number - 1).bit_length()
