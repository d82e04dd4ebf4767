"""What becomes of the scores of a tile: the weights of its keys, group by group, in the form that values are met in."""

from typing import Any

import numpy as np

from engine.kernels.cpu.compiled import part
from engine.kernels.cpu.rows import store_bfloat16
from engine.kernels.cpu.softmax import exponential, next_exponentials


def exponentiate_part(num_shared: int) -> Any:
    """What makes weights of the scores of one group of keys, `num_shared` rows to a query."""

    @part
    def exponentiate(weights: Any, keys: Any, window: int, largest: Any, sums: Any, rows: Any) -> None:
        """weights [KH, R, keys, and some room], scores of keys [begin, end), become exponentials, 0 of a key that a
        query does not see. Largest scores, sums of exponentials [KH, R] and what was summed up, rows [KH, R, D], go
        with them."""
        begin, end, num_keys = keys
        num_queries = weights.shape[1] // num_shared
        for head in range(len(weights)):
            for row in range(weights.shape[1]):
                num_seen = num_keys - num_queries + 1 + row // num_shared
                first, last = max(0, num_seen - window - begin), min(end, num_seen) - begin
                scores = weights[head, row, : end - begin]
                if first >= last:
                    scores[:] = np.float32(0)
                    continue
                before = largest[head, row]
                largest[head, row], total = next_exponentials(scores, first, last, before)
                if sums[head, row] != np.float32(0):
                    factor = exponential(before - largest[head, row])
                    sums[head, row] *= factor
                    for d in range(rows.shape[2]):
                        rows[head, row, d] *= factor
                sums[head, row] += total

    return exponentiate


@part
def rows_as_they_are(rows: Any) -> Any:
    """Queries in float32."""
    return rows


@part
def as_they_are(weights: Any, num_keys: int, size: int) -> Any:
    """Weights in float32."""
    return weights


@part
def words_of_rows(rows: Any) -> Any:
    """Queries in words of two bfloat16."""
    words = np.empty((rows.shape[0], rows.shape[1], rows.shape[2] // 2), np.int32)
    for head in range(len(rows)):
        for row in range(rows.shape[1]):
            store_bfloat16(rows[head, row], words[head, row])
    return words


@part
def words_of_blocks(weights: Any, num_keys: int, size: int) -> Any:
    """Weights in words of two bfloat16, each block's from a word on."""
    per_block = (size + 1) // 2
    words = np.empty((weights.shape[0], weights.shape[1], -(-num_keys // size) * per_block), np.int32)
    step = size if size % 2 else num_keys  # where no word holds weights of two blocks, they are one row
    for head in range(len(words)):
        for row in range(words.shape[1]):
            for begin in range(0, num_keys, step):
                end = min(num_keys, begin + step)
                store_bfloat16(weights[head, row, begin:end], words[head, row, begin // size * per_block :])
    return words
