"""Keys and values of one sequence, brought into the panels that products read: 16 keys, or 16 columns of values, side
by side, in words of 32 bits.

A word is a float32, or two bfloat16 that are multiplied together: of keys two neighbours of one key, of values the same
element of two neighbouring keys. So keys are transposed word by word, and values of two keys go into each other like
the teeth of a zip.
"""

from collections import abc
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from engine.kernels.cpu.compiled import part, vector_code
from engine.kernels.cpu.shared_work import done, take, wait
from engine.kernels.cpu.tile_code import HALF, INT32, INT64, LANES, WORDS, Generated, interleaved
from engine.kernels.cpu.vectors import fetch

KEYS_PER_BLOCK = 2 * LANES
"""Keys that are packed together, and scored together: two panels."""

_WORD_BYTES, _ADDRESS_BYTES = 4, 8
_ROUNDS = LANES.bit_length() - 1
_GRAINS = 16  # items of the phase, about: a thread packs neighbours, of which the next is on its way meanwhile


@cache
def pack_phase(per_word: int, head_dim: int) -> Any:
    """The phase that brings keys and values of the chunks' sequences into panels."""
    pack = pack_part(per_word, head_dim)

    @part
    def pack_all(phases: Any, phase: int, cached: Any, plan: Any, packed: Any) -> int:
        """plan: (table, chunks, blocks [., 3]: chunk, first key, place of that key among the packed ones)."""
        table, chunks, blocks = plan
        # Held here: what is only known by its address is freed after its last use.
        nothing = np.zeros(2 * cached.strides[2], np.uint8)
        grain = 1 + len(blocks) // _GRAINS
        begin = take(phases, phase, grain)
        while begin < len(blocks):
            end = min(len(blocks), begin + grain)
            for item in range(begin, end):
                chunk, key, place = blocks[item]
                row, start, length, _ = chunks[chunk]
                pack(cached, table[row], key, start + length, place, nothing, packed)
            done(phases, phase, end - begin)
            begin = take(phases, phase, grain)
        wait(phases, phase, len(blocks))
        return phase + 1

    return pack_all


@cache
def pack_part(per_word: int, head_dim: int) -> Any:
    """What packs one block of keys."""
    pack_keys, pack_values = _pack_keys(per_word, head_dim), _pack_values(per_word, head_dim)

    @part
    def pack(cached: Any, blocks: Any, first: int, num_keys: int, place: int, nothing: Any, packed: Any) -> None:
        """Keys [first, first + 32) and their values, zeros from `num_keys` on.

        cached [B, block size, 2, KH, D] · `place` is a multiple of 32 · nothing: a key and its value, of zeros ·
        packed: keys [KH, panels, words of a key, 16], values [KH, panels, words of the keys, 16], int32, and a code
        """
        block_bytes, key_bytes, kind_bytes, head_bytes, _ = cached.strides
        keys = np.full(KEYS_PER_BLOCK, nothing.ctypes.data)
        for key in range(first + KEYS_PER_BLOCK, min(first + 2 * KEYS_PER_BLOCK, num_keys)):
            block, slot = blocks[key // cached.shape[1]], key % cached.shape[1]
            fetch(cached.ctypes.data + block * block_bytes + slot * key_bytes, key_bytes)
        for index in range(min(KEYS_PER_BLOCK, num_keys - first)):
            block, slot = blocks[(first + index) // cached.shape[1]], (first + index) % cached.shape[1]
            keys[index] = cached.ctypes.data + block * block_bytes + slot * key_bytes
        for head in range(cached.shape[3]):
            pack_keys(keys, head * head_bytes, packed[0][head], place // LANES)
            pack_values(keys, kind_bytes + head * head_bytes, packed[1][head], place // per_word)

    return pack


def _pack_keys(per_word: int, head_dim: int) -> Any:
    num_words, odd = head_dim // per_word, head_dim % per_word
    num_square = num_words // LANES * LANES

    @part
    def pack_keys(keys: Any, offset: int, panels: Any, panel: int) -> None:
        """Two panels from `panel` on; each key's words begin `offset` behind its address."""
        for begin in range(0, KEYS_PER_BLOCK, LANES):
            words, sixteen = panels[panel + begin // LANES], keys.ctypes.data + begin * _ADDRESS_BYTES
            for word in range(0, num_square, LANES):
                transpose(sixteen, offset + word * _WORD_BYTES, words.ctypes.data + word * LANES * _WORD_BYTES)
            for word in range(num_square, num_words):
                for lane in range(LANES):
                    words[word, lane] = word_at(keys[begin + lane] + offset + word * _WORD_BYTES)
            if odd:
                for lane in range(LANES):
                    words[num_words, lane] = half_at(keys[begin + lane] + offset + num_words * _WORD_BYTES)

    return pack_keys


def _pack_values(per_word: int, head_dim: int) -> Any:
    element_bytes = _WORD_BYTES // per_word
    num_whole = head_dim // LANES * LANES

    @part
    def pack_values(keys: Any, offset: int, panels: Any, word: int) -> None:
        """Words from `word` on of each panel; each key's values begin `offset` behind its address."""
        for index in range(KEYS_PER_BLOCK // per_word):
            one, other = keys[index * per_word] + offset, keys[index * per_word + per_word - 1] + offset
            for d in range(0, num_whole, LANES):
                at = panels.ctypes.data + d // LANES * panels.strides[0] + (word + index) * panels.strides[1]
                zip_words(per_word, one + d * element_bytes, other + d * element_bytes, at)
            for d in range(num_whole, head_dim):
                value = word_at(one + d * element_bytes)
                if per_word == 2:
                    value = half_at(one + d * element_bytes) | half_at(other + d * element_bytes) << 16
                panels[d // LANES, word + index, d % LANES] = value

    return pack_values


@vector_code
def word_at(_context: Any, _address: Any) -> Generated:
    """The 32 bits at an address, as an int32."""

    def generate(_: Any, builder: ir.IRBuilder, _signature: Any, args: abc.Sequence[Any]) -> Any:
        return builder.load(builder.inttoptr(args[0], INT32.as_pointer()), align=2)

    return types.int32(types.intp), generate


@vector_code
def half_at(_context: Any, _address: Any) -> Generated:
    """The 16 bits at an address, as the lower half of an int32."""

    def generate(_: Any, builder: ir.IRBuilder, _signature: Any, args: abc.Sequence[Any]) -> Any:
        half = builder.load(builder.inttoptr(args[0], HALF.as_pointer()), align=2)
        return builder.zext(half, INT32)

    return types.int32(types.intp), generate


@vector_code
def transpose(_context: Any, _rows: Any, _offset: Any, _to: Any) -> Generated:
    """16 words of each of 16 rows, `offset` behind the addresses at `rows`, become 16 words of each column at `to`."""

    def generate(context: Any, builder: ir.IRBuilder, _signature: Any, args: abc.Sequence[Any]) -> Any:
        rows, offset, to = args
        vectors = []
        for lane in range(LANES):
            pointer = builder.inttoptr(builder.add(rows, ir.Constant(INT64, lane * 8)), INT64.as_pointer())
            vectors.append(_load(builder, builder.add(builder.load(pointer), offset), WORDS))
        # Rows that are half of them apart go into each other; each round brings one bit of the row into the column.
        for _ in range(_ROUNDS):
            halves = zip(vectors[: LANES // 2], vectors[LANES // 2 :], strict=True)
            vectors = [
                interleaved(builder, one, other, upper=upper) for one, other in halves for upper in (False, True)
            ]
        for column, vector in enumerate(vectors):
            at = builder.add(to, ir.Constant(INT64, column * LANES * _WORD_BYTES))
            builder.store(vector, builder.inttoptr(at, WORDS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(*(types.intp,) * 3), generate


@vector_code
def zip_words(_context: Any, per_word: Any, _one: Any, _other: Any, _to: Any) -> Generated:
    """16 words at `to`: each an element at `one`, and the element at `other` as its upper half if there are two."""
    signature = types.void(per_word, *(types.intp,) * 3)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: abc.Sequence[Any]) -> Any:
        _, one, other, to = args
        if signature.args[0].literal_value == 1:
            words = _load(builder, one, WORDS)
        else:
            halves = ir.VectorType(HALF, LANES)
            lower, upper = (builder.zext(_load(builder, at, halves), WORDS) for at in (one, other))
            words = builder.or_(lower, builder.shl(upper, ir.Constant(WORDS, [16] * LANES)))
        builder.store(words, builder.inttoptr(to, WORDS.as_pointer()), align=4)
        return context.get_dummy_value()

    return signature, generate


def _load(builder: ir.IRBuilder, address: Any, kind: ir.VectorType) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=2)
