"""Wide vectors: `WIDE` SIMD vectors in one value.

The scan uses one vector per state. With wide vectors, it advances `WIDE` states at a time. Several
independent recurrences hide each other's latency, and operands that they share are loaded once. As
in `vectors`, offsets count elements from the first element in memory.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from seqdiff.ops.cpu_simd.vectors import (
    LANES,
    VectorType,
    call_fma,
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
def repeat(typingctx, vector):
    """Repeat one vector `WIDE` times."""

    def codegen(context, builder, signature, args):
        return _join(builder, [args[0]] * WIDE)

    return VectorType(vector.scalar, WIDE)(vector), codegen


@intrinsic
def splat_each(typingctx, array, offset):
    """Load `WIDE` adjacent elements from an offset on, and spread each over one vector."""
    one = VectorType(array.dtype)

    def codegen(context, builder, signature, args):
        data = context.make_array(array)(context, builder, args[0]).data
        places = [builder.add(args[1], args[1].type(k)) for k in range(WIDE)]
        scalars = [builder.load(builder.gep(data, [place])) for place in places]
        return _join(builder, [splat_value(builder, one, scalar) for scalar in scalars])

    return VectorType(array.dtype, WIDE)(array, types.intp), codegen


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
    """Reduce four vectors to one, in which the lanes of quarter q add up to the sum of vector q."""

    def codegen(context, builder, signature, args):
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
