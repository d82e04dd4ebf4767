"""What the attention kernels are told of a step. Imports no Triton."""

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.triton.launches import AttentionShape, Launches


@dataclass(frozen=True, slots=True)
class TritonChunks:
    """The chunks of a step, for `attention.attend`. Every token is in one decode or one tile.

    table    [rows of the batch, M] int32, each row's block ids; those behind the last key are never read
    slots    [T] int64, where each token's key and value go, as in `reference.store_kv`; -1: nowhere
    decodes  [3, n] int64, chunks of one token: row, position, token in the step; position -1 sees no key and gets zeros
    tiles    [4, m] int64, pieces of longer chunks: row, position of the first token, that token in the step, tokens
    """

    table: Tensor
    slots: Tensor
    decodes: Tensor
    tiles: Tensor
    num_splits: int
    shape: AttentionShape
    launches: Launches
