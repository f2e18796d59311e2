"""Wide vectors: one or several SIMD vectors in one value.

The scan uses one vector per state. With wide vectors, the same code advances one state or `WIDE`
states at a time. Several independent recurrences hide each other's latency, and operands that they
share are loaded once. As in `vectors`, offsets count elements from the first element in memory.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from seqdiff.ops.cpu_simd.vectors import (
    LANES,
    VectorType,
    call_fma,
    emit_load_first,
    emit_store_first,
    fold,
    splat_value,
    vector_pointer,
)

WIDE = 4
"""Number of vectors, and so of states, that kernels process at a time."""


def _join(builder, parts):
    """Emit the concatenation of vectors, whose number is a power of two."""
    while len(parts) > 1:
        lanes = list(range(2 * parts[0].type.count))
        order = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [builder.shuffle_vector(one, two, order) for one, two in pairs]
    return parts[0]


def _split(builder, value):
    """Emit the vectors that `_join` concatenated."""
    nothing = ir.Constant(value.type, ir.Undefined)
    kind = ir.VectorType(ir.IntType(32), LANES)
    starts = range(0, value.type.count, LANES)
    orders = [ir.Constant(kind, list(range(start, start + LANES))) for start in starts]
    return [builder.shuffle_vector(value, nothing, order) for order in orders]


@intrinsic
def load_wide(typingctx, array, offset):
    """Load the `WIDE` adjacent vectors that start at an offset of an array."""
    vector = VectorType(array.dtype, WIDE)

    def codegen(context, builder, signature, args):
        pointer = vector_pointer(context, builder, array, args[0], args[1], WIDE)
        return builder.load(pointer, align=array.dtype.bitwidth // 8)

    return vector(array, types.intp), codegen


@intrinsic
def load_like(typingctx, array, offset, like):
    """Load as many adjacent vectors as ``like`` has, from an offset of an array."""

    def codegen(context, builder, signature, args):
        pointer = vector_pointer(context, builder, array, args[0], args[1], like.vectors)
        return builder.load(pointer, align=array.dtype.bitwidth // 8)

    return like(array, types.intp, like), codegen


@intrinsic
def load_rows(typingctx, array, offset, stride, count, like):
    """Load as many vectors as ``like`` has, which lie ``stride`` elements apart.

    Only the first ``count`` lanes of each are loaded. The others are zero, and their memory is not
    accessed.
    """

    def codegen(context, builder, signature, args):
        place, parts = args[1], []
        for _ in range(like.vectors):
            parts.append(emit_load_first(context, builder, array, args[0], place, args[3]))
            place = builder.add(place, args[2])
        return _join(builder, parts)

    return like(array, types.intp, types.intp, types.intp, like), codegen


@intrinsic
def store_rows(typingctx, array, offset, stride, count, value):
    """Store the first ``count`` lanes of each vector, ``stride`` elements apart."""

    def codegen(context, builder, signature, args):
        place = args[1]
        for part in _split(builder, args[4]):
            emit_store_first(context, builder, array, args[0], place, part, args[3])
            place = builder.add(place, args[2])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, types.intp, value), codegen


@intrinsic
def repeat(typingctx, vector, like):
    """Repeat one vector as many times as ``like`` has vectors."""

    def codegen(context, builder, signature, args):
        return _join(builder, [args[0]] * like.vectors)

    return like(vector, like), codegen


@intrinsic
def splat_each(typingctx, array, offset, stride, like):
    """Load the elements at ``offset``, ``offset + stride``, ..., and spread each over one vector.

    There are as many elements as ``like`` has vectors.
    """

    def codegen(context, builder, signature, args):
        data = context.make_array(array)(context, builder, args[0]).data
        one = VectorType(array.dtype)
        place, parts = args[1], []
        for _ in range(like.vectors):
            scalar = builder.load(builder.gep(data, [place]))
            parts.append(splat_value(builder, one, scalar))
            place = builder.add(place, args[2])
        return _join(builder, parts)

    return like(array, types.intp, types.intp, like), codegen


@intrinsic
def fma_each(typingctx, left, right, addend):
    """Multiply two wide vectors, and add the vectors of the product to ``addend``, in order."""

    def codegen(context, builder, signature, args):
        result = args[2]
        for pair in zip(_split(builder, args[0]), _split(builder, args[1]), strict=True):
            result = call_fma(builder, addend, [*pair, result])
        return result

    return addend(left, left, addend), codegen


@intrinsic
def fold_wide(typingctx, value):
    """Reduce `WIDE` vectors to one, in which the lanes of quarter q add up to the sum of vector q.

    A single vector is returned unchanged.
    """
    if value.vectors not in (1, WIDE):
        return None

    def codegen(context, builder, signature, args):
        if value.vectors == 1:
            return args[0]
        first, second, third, fourth = _split(builder, args[0])
        low, high = fold(builder, first, second, 8), fold(builder, third, fourth, 8)
        return fold(builder, low, high, 4)

    return VectorType(value.scalar)(value), codegen


@intrinsic
def add_folded(typingctx, array, offset, stride, totals, at, row):
    """Finish the sums of four vectors from `fold_wide`, and add them to ``totals``.

    The vectors lie ``stride`` elements apart. The sum of quarter q of vector i is added to
    ``totals[at + q * row + i]``.
    """

    def codegen(context, builder, signature, args):
        size = array.dtype.bitwidth // 8
        places = [builder.add(args[1], builder.mul(args[2], args[2].type(i))) for i in range(4)]
        one, two, three, four = (
            builder.load(vector_pointer(context, builder, array, args[0], place), align=size)
            for place in places
        )
        sums = fold(builder, fold(builder, one, two, 2), fold(builder, three, four, 2), 1)
        nothing = ir.Constant(sums.type, ir.Undefined)
        data = context.make_array(totals)(context, builder, args[3]).data
        for quarter in range(4):
            lanes = ir.Constant(
                ir.VectorType(ir.IntType(32), 4), [4 * quarter + i for i in range(4)]
            )
            part = builder.shuffle_vector(sums, nothing, lanes)
            place = builder.add(args[4], builder.mul(args[5], args[5].type(quarter)))
            pointer = builder.bitcast(builder.gep(data, [place]), part.type.as_pointer())
            total = builder.fadd(builder.load(pointer, align=size), part)
            builder.store(total, pointer, align=size)
        return context.get_dummy_value()

    number = types.intp
    return types.void(array, number, number, totals, number, number), codegen
