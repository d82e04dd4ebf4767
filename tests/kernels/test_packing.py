"""Keys and values in panels: each word where a product looks for it, over odd sizes."""

import os
import subprocess
import sys

import numpy as np
import pytest

from engine.kernels.cpu.chunk_attention import padded_dim
from engine.kernels.cpu.compiled import unlocked
from engine.kernels.cpu.packing import KEYS_PER_BLOCK, pack_part

LANES = 16
NUM_KV_HEADS = 2


def packed(cached, blocks, num_keys, *, first=0, place=0):
    """The panels of keys and of values, of `num_keys` keys from `first` on, as elements of the cache's type."""
    per_word, head_dim = 4 // cached.itemsize, cached.shape[4]
    pack = pack_part(per_word, head_dim)
    num_packed = place + KEYS_PER_BLOCK
    keys = np.zeros((NUM_KV_HEADS, num_packed // LANES, -(-head_dim // per_word), LANES), np.int32)
    values = np.zeros((NUM_KV_HEADS, padded_dim(head_dim) // LANES, num_packed // per_word, LANES), np.int32)

    def kernel(cached, blocks, first, num_keys, place, nothing, keys, values):
        pack(cached, blocks, first, num_keys, place, nothing, (keys, values, 0))

    nothing = np.zeros(2 * cached.strides[2], np.uint8)
    unlocked(kernel, per_word, head_dim)(cached, blocks, first, num_keys, place, nothing, keys, values)
    return keys.view(cached.dtype), values.view(cached.dtype)


@pytest.mark.parametrize("kind", [np.uint16, np.float32])
@pytest.mark.parametrize("head_dim", [1, 6, 16, 31, 40, 64])
def test_each_element_of_a_key_and_of_a_value_is_in_its_lane(kind, head_dim):
    per_word = 4 // np.dtype(kind).itemsize
    rng = np.random.default_rng(head_dim)
    for block_size, first, num_keys, place in [(16, 0, 32, 0), (5, 32, 64, 32), (7, 64, 77, 0), (32, 0, 1, 32)]:
        shape = (20, block_size, 2, NUM_KV_HEADS, head_dim)
        cached = rng.integers(1, 60_000, size=shape).astype(kind)
        blocks = rng.permutation(20)
        keys, values = packed(cached, blocks, num_keys, first=first, place=place)
        for index in range(KEYS_PER_BLOCK):
            at, key = place + index, first + index
            stored = np.zeros(shape[2:], kind)
            if key < num_keys:
                stored = cached[blocks[key // block_size], key % block_size]
            for d in range(head_dim):
                of_keys = keys[:, at // LANES, d // per_word, at % LANES * per_word + d % per_word]
                of_values = values[:, d // LANES, at // per_word, d % LANES * per_word + at % per_word]
                assert (of_keys == stored[0, :, d]).all()
                assert (of_values == stored[1, :, d]).all()
        if place:  # what lies in front stays
            assert not keys[:, : place // LANES].any()
            assert not values[:, :, : place // per_word].any()


FREED_MEMORY = """
import numpy as np
from engine.kernels.cpu.chunk_attention import padded_dim
from engine.kernels.cpu.compiled import unlocked
from engine.kernels.cpu.packing import pack_phase
from engine.kernels.cpu.shared_work import counters

phase = pack_phase(2, 64)


def kernel(phases, cached, plan, keys, values):
    phase(phases, 0, cached, plan, (keys, values, 0))


cached = np.ones((3, 16, 2, 8, 64), np.uint16)
keys, values = np.zeros((8, 4, 32, 16), np.int32), np.zeros((8, padded_dim(64) // 16, 32, 16), np.int32)
plan = (np.arange(3)[None], np.array([[0, 0, 40, 0]]), np.array([[0, 0, 0], [0, 32, 32]]))
unlocked(kernel, "freed memory")(counters(1), cached, plan, keys, values)
assert (keys.view(np.uint16)[:, 2, :, :16] == 1).all()
assert not keys.view(np.uint16)[:, 2, :, 16:].any() and not keys[:, 3].any()
assert not values[:, :, 20:].any()
"""


def test_what_stands_for_keys_that_are_not_there_is_no_freed_memory():
    environment = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.perturb=255"}  # what is freed is filled with it
    result = subprocess.run([sys.executable, "-c", FREED_MEMORY], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
