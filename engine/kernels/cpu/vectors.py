"""Vector code that numba's own language has no words for, written in LLVM's.

A vector is one head of D numbers, whatever D is: LLVM splits it into the registers that the machine has. Elements are
float32, or bfloat16 seen as uint16. Addresses and strides are in bytes.
"""

from collections import abc
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from engine.kernels.cpu.compiled import FAST, vector_code

FLOAT, INT64 = ir.FloatType(), ir.IntType(64)
_NAN_BITS = 0x7FC0
_LINE_BYTES = 64

Generated = tuple[Any, abc.Callable[..., Any]]


@vector_code
def widen(_context: Any, element: Any) -> Generated:
    """An element as float32."""

    def generate(_: Any, builder: ir.IRBuilder, signature: Any, args: abc.Sequence[Any]) -> Any:
        return _widened(builder, args[0], FLOAT, signature.args[0])

    return types.float32(element), generate


@vector_code
def narrow(_context: Any, number: Any, like: Any) -> Generated:
    """A float32 as an element of the type of `like`, rounded to the nearest, halfway to even."""

    def generate(_: Any, builder: ir.IRBuilder, signature: Any, args: abc.Sequence[Any]) -> Any:
        return args[0] if signature.args[1] == types.float32 else _bfloat16(builder, args[0])

    return like(number, like), generate


@vector_code
def power_of_two(_context: Any, exponent: Any) -> Generated:
    """2 to the power of an int32 from -126 to 127, as float32."""

    def generate(_: Any, builder: ir.IRBuilder, _signature: Any, args: abc.Sequence[Any]) -> Any:
        biased = builder.add(args[0], ir.Constant(ir.IntType(32), 127))
        return builder.bitcast(builder.shl(biased, ir.Constant(ir.IntType(32), 23)), FLOAT)

    return types.float32(types.int32), generate


@vector_code
def larger(_context: Any, one: Any, other: Any) -> Generated:
    """The larger of two float32; what is no number where one of them is none."""
    return _of_two("llvm.maximum.f32")


@vector_code
def smaller(_context: Any, one: Any, other: Any) -> Generated:
    """The smaller of two float32; what is no number where one of them is none."""
    return _of_two("llvm.minimum.f32")


@vector_code
def fetch(_context: Any, _address: Any, _num_bytes: Any) -> Generated:
    """What lies at the address, `num_bytes` of it, is on its way to the second cache."""

    def generate(context: Any, builder: ir.IRBuilder, _signature: Any, args: abc.Sequence[Any]) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        signature = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        prefetch = cgutils.get_or_insert_function(builder.module, signature, "llvm.prefetch.p0")
        to_read, second_cache, data = (ir.Constant(number, each) for each in (0, 2, 1))
        line = ir.Constant(INT64, _LINE_BYTES)
        num_lines = builder.sdiv(builder.add(args[1], ir.Constant(INT64, _LINE_BYTES - 1)), line)
        with cgutils.for_range(builder, num_lines, intp=INT64) as loop:
            at = builder.inttoptr(_offset(builder, args[0], loop.index, line), pointer)
            builder.call(prefetch, [at, to_read, second_cache, data])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@vector_code
def dot_rows(
    _context: Any, num_rows: Any, dim: Any, like: Any, rows: Any, keys: Any, key_bytes: Any, num_keys: Any, to: Any,
    to_bytes: Any,
) -> Generated:  # fmt: skip
    """Products of `num_rows` float32 vectors at `rows`, one behind the other, with each of `num_keys` vectors.

    A key is an element vector, the next one `key_bytes` further on. What row r and key k give goes to `to + r *
    to_bytes + 4 * k`, float32. `num_rows` and `dim` are constants: each key is read once, the rows stay in registers.
    """
    signature = types.void(num_rows, dim, like, *(types.intp,) * 6)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: abc.Sequence[Any]) -> Any:
        _, _, _, rows, keys, key_bytes, num_keys, to, to_bytes = args
        vector = ir.VectorType(FLOAT, signature.args[1].literal_value)
        held = [_float_row(builder, rows, row, vector) for row in range(signature.args[0].literal_value)]
        reduce = _sum_of(builder, vector)
        with cgutils.for_range(builder, num_keys, intp=INT64) as loop:
            at = _offset(builder, keys, loop.index, key_bytes)
            key = _load(builder, at, vector, signature.args[2])
            column = _offset(builder, to, loop.index, ir.Constant(INT64, 4))
            for row, value in enumerate(held):
                product = builder.fmul(value, key, flags=FAST)
                total = builder.call(reduce, [ir.Constant(FLOAT, 0.0), product], fastmath=FAST)
                at = _offset(builder, column, ir.Constant(INT64, row), to_bytes)
                builder.store(total, builder.inttoptr(at, FLOAT.as_pointer()))
        return context.get_dummy_value()

    return signature, generate


@vector_code
def add_weighted(
    _context: Any, num_rows: Any, dim: Any, like: Any, weights: Any, weight_bytes: Any, values: Any, value_bytes: Any,
    num_values: Any, to: Any,
) -> Generated:  # fmt: skip
    """To each of `num_rows` float32 vectors at `to` adds the sum of weight times value over `num_values` vectors.

    The weight of row r and value v is the float32 at `weights + r * weight_bytes + 4 * v`; otherwise as `dot_rows`.
    """
    signature = types.void(num_rows, dim, like, *(types.intp,) * 6)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: abc.Sequence[Any]) -> Any:
        _, _, _, weights, weight_bytes, values, value_bytes, num_values, to = args
        vector = ir.VectorType(FLOAT, signature.args[1].literal_value)
        rows = range(signature.args[0].literal_value)
        sums = [cgutils.alloca_once_value(builder, _float_row(builder, to, row, vector)) for row in rows]
        with cgutils.for_range(builder, num_values, intp=INT64) as loop:
            value = _load(builder, _offset(builder, values, loop.index, value_bytes), vector, signature.args[2])
            column = _offset(builder, weights, loop.index, ir.Constant(INT64, 4))
            for row, total in enumerate(sums):
                at = _offset(builder, column, ir.Constant(INT64, row), weight_bytes)
                weight = _splat(builder, builder.load(builder.inttoptr(at, FLOAT.as_pointer())), vector)
                product = builder.fmul(weight, value, flags=FAST)
                builder.store(builder.fadd(builder.load(total), product, flags=FAST), total)
        for row, total in enumerate(sums):
            builder.store(builder.load(total), _row_pointer(builder, to, row, vector), align=4)
        return context.get_dummy_value()

    return signature, generate


def _of_two(name: str) -> Generated:
    def generate(_: Any, builder: ir.IRBuilder, _signature: Any, args: abc.Sequence[Any]) -> Any:
        signature = ir.FunctionType(FLOAT, [FLOAT, FLOAT])
        return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), args)

    return types.float32(types.float32, types.float32), generate


def _offset(builder: ir.IRBuilder, address: Any, index: Any, stride: Any) -> Any:
    return builder.add(address, builder.mul(index, stride))


def _row_pointer(builder: ir.IRBuilder, address: Any, row: int, vector: ir.VectorType) -> Any:
    at = builder.add(address, ir.Constant(INT64, 4 * vector.count * row))
    return builder.inttoptr(at, vector.as_pointer())


def _float_row(builder: ir.IRBuilder, address: Any, row: int, vector: ir.VectorType) -> Any:
    return builder.load(_row_pointer(builder, address, row, vector), align=4)


def _load(builder: ir.IRBuilder, address: Any, vector: ir.VectorType, element: Any) -> Any:
    if element == types.float32:
        return builder.load(builder.inttoptr(address, vector.as_pointer()), align=4)
    stored = ir.VectorType(ir.IntType(16), vector.count)
    return _widened(builder, builder.load(builder.inttoptr(address, stored.as_pointer()), align=2), vector, element)


def _widened(builder: ir.IRBuilder, value: Any, to: Any, element: Any) -> Any:
    """bfloat16 is the upper half of a float32."""
    if element == types.float32:
        return value
    integer = ir.IntType(32)
    wide = ir.VectorType(integer, to.count) if isinstance(to, ir.VectorType) else integer
    shift = ir.Constant(wide, [16] * to.count) if isinstance(to, ir.VectorType) else ir.Constant(wide, 16)
    return builder.bitcast(builder.shl(builder.zext(value, wide), shift), to)


def _bfloat16(builder: ir.IRBuilder, number: Any) -> Any:
    integer, half = ir.IntType(32), ir.IntType(16)
    bits = builder.bitcast(number, integer)
    upper = builder.lshr(bits, ir.Constant(integer, 16))
    is_odd = builder.and_(upper, ir.Constant(integer, 1))
    rounded = builder.add(bits, builder.add(is_odd, ir.Constant(integer, 0x7FFF)))
    narrowed = builder.trunc(builder.lshr(rounded, ir.Constant(integer, 16)), half)
    # Rounding up could turn what is no number into infinity. Told by the bits: a fast comparison would not see it.
    magnitude = builder.and_(bits, ir.Constant(integer, 0x7FFFFFFF))
    is_nan = builder.icmp_unsigned(">", magnitude, ir.Constant(integer, 0x7F800000))
    return builder.select(is_nan, ir.Constant(half, _NAN_BITS), narrowed)


def _splat(builder: ir.IRBuilder, scalar: Any, vector: ir.VectorType) -> Any:
    nothing = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(nothing, scalar, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, nothing, zeros)


def _sum_of(builder: ir.IRBuilder, vector: ir.VectorType) -> Any:
    signature = ir.FunctionType(FLOAT, [FLOAT, vector])
    return cgutils.get_or_insert_function(builder.module, signature, f"llvm.vector.reduce.fadd.v{vector.count}f32")
