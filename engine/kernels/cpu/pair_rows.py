"""Vector code of attention for processors that multiply bfloat16 in pairs (AVX-512's `vdpbf16ps`).

A key is read as it lies, 32 elements to a register. The products of sixteen keys are sixteen registers of partial sums;
added up crosswise they become one register of sixteen scores. Values of two keys go into each other like the teeth of a
zip, so that a pair of weights meets them in one instruction. Addresses and strides are in bytes. Every sum runs in one
order, whoever stands beside it, so its bits are always the same.
"""

from collections import abc
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target

from engine.kernels.cpu.compiled import vector_code
from engine.kernels.cpu.tile_code import FLOATS, HALF, INT32, INT64, LANES, WORDS, Dot, Generated, interleaved

_REGISTER_BYTES = 4 * LANES
_HALVES = ir.VectorType(HALF, 2 * LANES)


@cache
def has_pairs(per_word: int, head_dim: int) -> bool:
    """Whether heads of so many elements, `per_word` to 32 bits, are multiplied in pairs here."""
    features = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    return per_word == 2 and head_dim % (2 * LANES) == 0 and "+avx512bf16" in features


@vector_code
def dot_pairs(
    _context: Any, num_rows: Any, dim: Any, rows: Any, keys: Any, key_bytes: Any, num_keys: Any, to: Any, to_bytes: Any,
) -> Generated:  # fmt: skip
    """Products of `num_rows` bfloat16 vectors at `rows`, one behind the other, with each of `num_keys` at `keys`.

    What row r and key k give goes to `to + r * to_bytes + 4 * k`, float32; behind the last key up to fifteen numbers
    more are written. `num_rows` and `dim` are constants.
    """
    signature = types.void(num_rows, dim, *(types.intp,) * 6)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: abc.Sequence[Any]) -> Any:
        _, _, rows, keys, key_bytes, num_keys, to, to_bytes = args
        num_rows, dim = signature.args[0].literal_value, signature.args[1].literal_value
        dot, num_parts = _dot(builder), dim // (2 * LANES)
        last = builder.sub(num_keys, ir.Constant(INT64, 1))
        num_groups = builder.sdiv(builder.add(num_keys, ir.Constant(INT64, LANES - 1)), ir.Constant(INT64, LANES))
        with cgutils.for_range(builder, num_groups, intp=INT64) as loop:
            first = builder.mul(loop.index, ir.Constant(INT64, LANES))
            group = [_address_of(builder, keys, key_bytes, first, key, last) for key in range(LANES)]
            column = _offset(builder, to, first, ir.Constant(INT64, 4))
            for row in range(num_rows):
                # Read anew for each row: from the nearest cache, as part of the instruction that multiplies.
                query = [_words(builder, rows, (row * num_parts + at) * _REGISTER_BYTES) for at in range(num_parts)]
                totals = [_scored(builder, dot, query, key) for key in group]
                place = _offset(builder, column, ir.Constant(INT64, row), to_bytes)
                builder.store(_added_crosswise(builder, totals), builder.inttoptr(place, FLOATS.as_pointer()), align=4)
        return context.get_dummy_value()

    return signature, generate


@vector_code
def add_pairs(
    _context: Any, num_rows: Any, dim: Any, weights: Any, weight_bytes: Any, values: Any, value_bytes: Any,
    num_values: Any, to: Any,
) -> Generated:  # fmt: skip
    """To each of `num_rows` float32 vectors at `to` adds the sum of weight times value over `num_values` vectors.

    Weights come in pairs of bfloat16, those of row r from `weights + r * weight_bytes` on, the last pair's second being
    0 where there is no value for it. `num_rows` and `dim` are constants.
    """
    signature = types.void(num_rows, dim, *(types.intp,) * 6)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: abc.Sequence[Any]) -> Any:
        _, _, weights, weight_bytes, values, value_bytes, num_values, to = args
        rows, dim, dot = range(signature.args[0].literal_value), signature.args[1].literal_value, _dot(builder)
        sums = [[_sum(builder, to, row * dim + place) for place in range(0, dim, LANES)] for row in rows]
        last = builder.sub(num_values, ir.Constant(INT64, 1))
        num_pairs = builder.sdiv(builder.add(num_values, ir.Constant(INT64, 1)), ir.Constant(INT64, 2))
        with cgutils.for_range(builder, num_pairs, intp=INT64) as loop:
            first = builder.mul(loop.index, ir.Constant(INT64, 2))
            pair = [_address_of(builder, values, value_bytes, first, index, last) for index in (0, 1)]
            zipped = [each for begin in range(0, 2 * dim, _REGISTER_BYTES) for each in _zipped(builder, pair, begin)]
            column = _offset(builder, weights, loop.index, ir.Constant(INT64, 4))
            for row in rows:
                place = _offset(builder, column, ir.Constant(INT64, row), weight_bytes)
                _add_weighted(builder, dot, sums[row], zipped, place)
        for row in rows:
            _store_sums(builder, sums[row], to, row * dim)
        return context.get_dummy_value()

    return signature, generate


def _dot(builder: ir.IRBuilder) -> Dot:
    """What adds to sixteen sums the products of pairs."""
    signature = ir.FunctionType(FLOATS, [FLOATS, WORDS, WORDS])
    function = cgutils.get_or_insert_function(builder.module, signature, "llvm.x86.avx512bf16.dpbf16ps.512")
    return lambda total, one, other: builder.call(function, [total, one, other])


def _scored(builder: ir.IRBuilder, dot: Dot, query: abc.Sequence[Any], key: Any) -> Any:
    total = ir.Constant(FLOATS, [0.0] * LANES)
    for index, part in enumerate(query):
        total = dot(total, part, _words(builder, key, index * _REGISTER_BYTES))
    return total


def _added_crosswise(builder: ir.IRBuilder, totals: list[Any]) -> Any:
    """Lane n is the sum of all lanes of the n-th of sixteen registers. Each round halves their number: two that are
    half of it apart go into each other, the upper half of the lanes onto the lower."""
    while len(totals) > 1:
        middle = len(totals) // 2
        halves = zip(totals[:middle], totals[middle:], strict=True)
        totals = [
            builder.fadd(*(interleaved(builder, *pair, upper=upper) for upper in (False, True))) for pair in halves
        ]
    return totals[0]


def _zipped(builder: ir.IRBuilder, pair: abc.Sequence[Any], begin: int) -> list[Any]:
    """Elements of two vectors, 32 from byte `begin` on, as words of both: two registers."""
    pointers = [builder.inttoptr(builder.add(each, ir.Constant(INT64, begin)), _HALVES.as_pointer()) for each in pair]
    one, other = (builder.load(pointer, align=2) for pointer in pointers)
    return [builder.bitcast(interleaved(builder, one, other, upper=upper), WORDS) for upper in (False, True)]


def _address_of(builder: ir.IRBuilder, begin: Any, stride: Any, first: Any, index: int, last: Any) -> Any:
    """Of the vector `index` behind the first, or of the last one where there are not so many."""
    number = builder.add(first, ir.Constant(INT64, index))
    if index:
        number = builder.select(builder.icmp_signed("<", number, last), number, last)
    return _offset(builder, begin, number, stride)


def _add_weighted(builder: ir.IRBuilder, dot: Dot, sums: list[Any], zipped: list[Any], place: Any) -> None:
    """To a row's sums adds a pair of values, zipped, by the pair of weights at `place`."""
    weight = _splat(builder, builder.load(builder.inttoptr(place, INT32.as_pointer()), align=4))
    for total, value in zip(sums, zipped, strict=True):
        builder.store(dot(builder.load(total), weight, value), total)


def _store_sums(builder: ir.IRBuilder, sums: list[Any], to: Any, index: int) -> None:
    """A row's sums are the numbers from `index` on of those at `to`."""
    for part, total in enumerate(sums):
        builder.store(builder.load(total), _floats_at(builder, to, index + part * LANES), align=4)


def _sum(builder: ir.IRBuilder, to: Any, index: int) -> Any:
    return cgutils.alloca_once_value(builder, builder.load(_floats_at(builder, to, index), align=4))


def _floats_at(builder: ir.IRBuilder, to: Any, index: int) -> Any:
    return builder.inttoptr(builder.add(to, ir.Constant(INT64, 4 * index)), FLOATS.as_pointer())


def _words(builder: ir.IRBuilder, address: Any, offset: int) -> Any:
    at = builder.add(address, ir.Constant(INT64, offset))
    return builder.load(builder.inttoptr(at, WORDS.as_pointer()), align=2)


def _offset(builder: ir.IRBuilder, address: Any, index: Any, stride: Any) -> Any:
    return builder.add(address, builder.mul(index, stride))


def _splat(builder: ir.IRBuilder, word: Any) -> Any:
    nothing = ir.Constant(WORDS, ir.Undefined)
    first = builder.insert_element(nothing, word, ir.Constant(INT32, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(WORDS, [0] * LANES))
