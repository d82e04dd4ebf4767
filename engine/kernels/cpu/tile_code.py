"""The inner loop of a product, in LLVM's language: some rows times two panels of sixteen columns, all in registers.

What goes in comes in words of 32 bits, along the sum: one float32, two bfloat16, or four 8-bit integers. The word of a
row meets the sixteen words of a panel in one instruction where the processor has it (AVX-512's bf16 and VNNI), else in
what stands for it. A row's sum runs in one order, whoever stands beside it, so its bits are always the same.
"""

from collections import abc
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from engine.kernels.cpu.compiled import vector_code

LANES = 16
"""Columns of a panel."""

NUM_ARGUMENTS = 14
"""Of the code that multiplies: numbers and addresses."""

ZERO_POINT = 128
"""8-bit rows are stored as unsigned numbers, this much above what they stand for."""

FLOAT, HALF, INT32, INT64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
FLOATS, WORDS = ir.VectorType(FLOAT, LANES), ir.VectorType(INT32, LANES)
_LARGEST_FINITE = 3.4028234663852886e38  # of float32
Generated = tuple[Any, abc.Callable[..., Any]]
Dot = abc.Callable[[Any, Any, Any], Any]


@vector_code
def multiply_tile(
    context: Any, per_word: Any, num_rows: Any, rows: Any, row_bytes: Any, row_scales: Any, weight: Any, panels: Any,
    panel_bytes: Any, num_words: Any, to: Any, to_bytes: Any,
) -> Generated:  # fmt: skip
    """Products of `num_rows` rows with two panels, biases added, are the 32 float32 at `to`, rows `to_bytes` apart.

    `per_word` and `num_rows` are constants. Addresses: rows, `row_bytes` apart; row_scales float32; weight (words of
    the panels, `panel_bytes` apart, [num_words, 16] each; column scales float32, column offsets int32, biases float32).
    """
    signature = types.void(per_word, num_rows, *(types.intp,) * 3, weight, panels, *(types.intp,) * 4)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: abc.Sequence[Any]) -> Any:
        _, _, rows, row_bytes, row_scales, weight, panels, panel_bytes, num_words, to, to_bytes = args
        per_word, num_rows = signature.args[0].literal_value, signature.args[1].literal_value
        words, factors, offsets, biases = (builder.extract_value(weight, index) for index in range(4))
        columns = [builder.extract_value(panels, index) for index in range(2)]
        begins = [builder.add(words, builder.mul(column, panel_bytes)) for column in columns]
        sums = _sums(context, builder, per_word, num_rows, (rows, row_bytes, begins, num_words))
        for half, column in enumerate(columns):
            at = builder.mul(column, ir.Constant(INT64, 4 * LANES))
            bias = _load(builder, builder.add(biases, at), FLOATS)
            for row in range(num_rows):
                total = builder.load(sums[row][half])
                if per_word == 4:
                    total = _scaled(builder, total, row, (row_scales, factors, offsets), at)
                place = builder.add(to, builder.mul(to_bytes, ir.Constant(INT64, row)))
                _store_half(builder, builder.fadd(total, bias), place, half)
        return context.get_dummy_value()

    return signature, generate


@vector_code
def judge_tile(
    _context: Any, num_rows: Any, tile: Any, largest: Any, places: Any, counts: Any, place: Any
) -> Generated:
    """What is known of each lane of each row's products, with those of one more pair of panels, the one at `place`.

    Addresses of `num_rows` rows of 32 each: tile and largest float32, places and counts int32. A lane has the largest
    number that it has seen, where it saw it first, and how many of all were finite.
    """
    signature = types.void(*(types.intp,) * 6)

    def generate(context: Any, builder: ir.IRBuilder, _signature: Any, args: abc.Sequence[Any]) -> Any:
        num_rows, *addresses, place = args
        here = _splat(builder, builder.trunc(place, INT32), WORDS)
        with cgutils.for_range(builder, builder.mul(num_rows, ir.Constant(INT64, 2)), intp=INT64) as loop:
            at = builder.mul(loop.index, ir.Constant(INT64, 4 * LANES))
            numbers, largest, places, counts = (
                builder.inttoptr(builder.add(address, at), kind.as_pointer())
                for address, kind in zip(addresses, (FLOATS, FLOATS, WORDS, WORDS), strict=True)
            )
            number, known = builder.load(numbers, align=4), builder.load(largest, align=4)
            is_larger = builder.fcmp_ordered(">", number, known)  # false of what is no number
            is_finite = _is_finite(builder, number)
            builder.store(builder.select(is_larger, number, known), largest, align=4)
            builder.store(builder.select(is_larger, here, builder.load(places, align=4)), places, align=4)
            count = builder.add(builder.load(counts, align=4), builder.zext(is_finite, WORDS))
            builder.store(count, counts, align=4)
        return context.get_dummy_value()

    return signature, generate


@vector_code
def call_code(_context: Any, code: Any, *arguments: Any) -> Generated:
    """What the function at the address `code` returns, an int64, for NUM_ARGUMENTS int64."""

    def generate(_: Any, builder: ir.IRBuilder, _signature: Any, args: abc.Sequence[Any]) -> Any:
        kind: Any = ir.FunctionType(INT64, [INT64] * NUM_ARGUMENTS)
        given = args[1] if len(args) == 2 else args[1:]
        values = [builder.extract_value(given, index) for index in range(NUM_ARGUMENTS)] if len(args) == 2 else given
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), values)

    return types.int64(types.int64, types.StarArgTuple.from_types((types.int64,) * NUM_ARGUMENTS)), generate


def interleaved(builder: ir.IRBuilder, one: Any, other: Any, *, upper: bool) -> Any:
    """The lower or upper halves of two vectors, element by element in turn."""
    count = one.type.count
    first = count // 2 if upper else 0
    order = [index + vector * count for index in range(first, first + count // 2) for vector in (0, 1)]
    return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(INT32, count), order))


def _sums(context: Any, builder: ir.IRBuilder, per_word: int, num_rows: int, operands: Any) -> list[list[Any]]:
    """Where the sums of each row and panel are, after the loop over their words."""
    rows, row_bytes, panels, num_words = operands
    dot, kind = _dot(context, builder, per_word)
    zero = ir.Constant(kind, [0] * LANES if kind is WORDS else [0.0] * LANES)
    sums = [[cgutils.alloca_once_value(builder, zero) for _ in panels] for _ in range(num_rows)]
    begins = [builder.add(rows, builder.mul(row_bytes, ir.Constant(INT64, row))) for row in range(num_rows)]
    with cgutils.for_range(builder, num_words, intp=INT64) as loop:
        at = builder.mul(loop.index, ir.Constant(INT64, 4 * LANES))
        weights = [_load(builder, builder.add(panel, at), WORDS) for panel in panels]
        at = builder.mul(loop.index, ir.Constant(INT64, 4))
        for begin, row_sums in zip(begins, sums, strict=True):
            word = _splat(builder, _load(builder, builder.add(begin, at), INT32), WORDS)
            for weight, total in zip(weights, row_sums, strict=True):
                builder.store(dot(builder.load(total), word, weight), total)
    return sums


def _scaled(builder: ir.IRBuilder, total: Any, row: int, scales: tuple[Any, Any, Any], at: Any) -> Any:
    """What sums of products of 8-bit integers stand for. Addresses: the rows' scales, and the columns' scales and
    offsets, of which those from byte `at` on belong to the sums."""
    row_scales, factors, offsets = scales
    offset, factor = _load(builder, builder.add(offsets, at), WORDS), _load(builder, builder.add(factors, at), FLOATS)
    scale = _load(builder, builder.add(row_scales, ir.Constant(INT64, 4 * row)), FLOAT)
    whole = builder.sitofp(builder.add(total, offset), FLOATS)
    return builder.fmul(whole, builder.fmul(factor, _splat(builder, scale, FLOATS)))


def _dot(context: Any, builder: ir.IRBuilder, per_word: int) -> tuple[Dot, ir.VectorType]:
    """What adds to a vector of sums the products of a row's word and a panel's words; and the sums' type."""
    features = context.codegen().magic_tuple()[2].split(",")
    if per_word == 1:
        return lambda total, row, panel: _fused(builder, _floats(builder, row), _floats(builder, panel), total), FLOATS
    if per_word == 2:
        if "+avx512bf16" in features:
            return _instruction(builder, "llvm.x86.avx512bf16.dpbf16ps.512", FLOATS), FLOATS
        return lambda total, row, panel: _dot_of_halves(builder, total, row, panel), FLOATS
    if "+avx512vnni" in features:
        return _instruction(builder, "llvm.x86.avx512.vpdpbusd.512", WORDS), WORDS
    return lambda total, row, panel: _dot_of_bytes(builder, total, row, panel), WORDS


def _instruction(builder: ir.IRBuilder, name: str, kind: ir.VectorType) -> Dot:
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind, WORDS, WORDS]), name)
    return lambda total, row, panel: builder.call(function, [total, row, panel])


def _dot_of_halves(builder: ir.IRBuilder, total: Any, row: Any, panel: Any) -> Any:
    """Two bfloat16 a word, each the upper half of a float32."""
    shift, upper = (ir.Constant(WORDS, [number] * LANES) for number in (16, -(1 << 16)))
    first = [_floats(builder, builder.shl(each, shift)) for each in (row, panel)]
    second = [_floats(builder, builder.and_(each, upper)) for each in (row, panel)]
    return _fused(builder, second[0], second[1], _fused(builder, first[0], first[1], total))


def _dot_of_bytes(builder: ir.IRBuilder, total: Any, row: Any, panel: Any) -> Any:
    """Four bytes a word, the row's unsigned, the panel's signed: two products of 16 bits at a time."""
    halves, pairs = ir.VectorType(HALF, 2 * LANES), ir.VectorType(INT32, 2 * LANES)
    row, panel = builder.bitcast(row, halves), builder.bitcast(panel, halves)
    eight, low = ir.Constant(halves, [8] * 2 * LANES), ir.Constant(halves, [255] * 2 * LANES)
    even = builder.and_(row, low), builder.ashr(builder.shl(panel, eight), eight)
    odd = builder.lshr(row, eight), builder.ashr(panel, eight)
    for unsigned, signed in (even, odd):
        products = builder.mul(builder.sext(unsigned, pairs), builder.sext(signed, pairs))
        for first in (0, 1):
            picked = ir.Constant(WORDS, [2 * lane + first for lane in range(LANES)])
            half = builder.shuffle_vector(products, ir.Constant(pairs, ir.Undefined), picked)
            total = builder.add(total, half)
    return total


def _store_half(builder: ir.IRBuilder, numbers: Any, row: Any, half: int) -> None:
    """Products with the first or second panel stand in the row at that address."""
    place = builder.add(row, ir.Constant(INT64, 4 * LANES * half))
    builder.store(numbers, builder.inttoptr(place, FLOATS.as_pointer()), align=4)


def _is_finite(builder: ir.IRBuilder, number: Any) -> Any:
    """False of what is no number, too."""
    signature = ir.FunctionType(FLOATS, [FLOATS])
    magnitude = cgutils.get_or_insert_function(builder.module, signature, f"llvm.fabs.v{LANES}f32")
    limit = ir.Constant(FLOATS, [_LARGEST_FINITE] * LANES)
    return builder.fcmp_ordered("<=", builder.call(magnitude, [number]), limit)


def _fused(builder: ir.IRBuilder, one: Any, other: Any, total: Any) -> Any:
    signature = ir.FunctionType(FLOATS, [FLOATS] * 3)
    function = cgutils.get_or_insert_function(builder.module, signature, f"llvm.fmuladd.v{LANES}f32")
    return builder.call(function, [one, other, total])


def _floats(builder: ir.IRBuilder, words: Any) -> Any:
    return builder.bitcast(words, FLOATS)


def _load(builder: ir.IRBuilder, address: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)


def _splat(builder: ir.IRBuilder, scalar: Any, vector: ir.VectorType) -> Any:
    nothing = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(nothing, scalar, ir.Constant(INT32, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(WORDS, [0] * LANES))
