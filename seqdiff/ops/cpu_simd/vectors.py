"""Explicit SIMD vectors inside Numba kernels.

A vector holds `LANES` adjacent channels, one per lane. LLVM maps it to the registers that the
machine has: in float32, one AVX-512, two AVX2 or four SSE/NEON registers. Kernels that use these
vectors do not depend on what the auto-vectoriser recognises, need no alias checks, and round in the
same way on every call.

Functions that emit LLVM instructions take an LLVM builder. Functions marked ``@intrinsic`` are
called inside kernels; their docstrings describe that call. An offset counts elements from the first
element of an array in memory, whatever the array's strides.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel.models import PrimitiveModel
from numba.extending import intrinsic, register_model

LANES = 16


class VectorType(types.Type):
    """Numba's type of one or several adjacent vectors of float32 or float64.

    Attributes:
        scalar: Numba's type of an element.
        vectors: Number of vectors.
        lanes: Number of elements of all vectors.
    """

    def __init__(self, scalar, vectors=1):
        self.scalar = scalar
        self.vectors = vectors
        self.lanes = vectors * LANES
        super().__init__(name=f"vector{self.lanes}({scalar})")


@register_model(VectorType)
class _VectorModel(PrimitiveModel):
    def __init__(self, manager, fe_type):
        super().__init__(manager, fe_type, llvm_vector(fe_type))


def _llvm_scalar(vector):
    return ir.FloatType() if vector.scalar == types.float32 else ir.DoubleType()


def llvm_vector(vector):
    """Return LLVM's type of a `VectorType`."""
    return ir.VectorType(_llvm_scalar(vector), vector.lanes)


def call_fma(builder, vector, args):
    """Emit a fused multiply-add."""
    kind = llvm_vector(vector)
    name = f"llvm.fma.v{vector.lanes}f{vector.scalar.bitwidth}"
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(kind, [kind] * 3), name
    )
    return builder.call(function, args)


def vector_pointer(context, builder, array_type, array, offset, vectors=1):
    """Emit the address of the vectors that start at an offset of an array."""
    data = context.make_array(array_type)(context, builder, array).data
    pointer = builder.gep(data, [offset])
    kind = llvm_vector(VectorType(array_type.dtype, vectors))
    return builder.bitcast(pointer, kind.as_pointer())


def splat_value(builder, vector, scalar):
    """Emit a vector with one scalar in every lane."""
    first = builder.insert_element(
        ir.Constant(llvm_vector(vector), ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0)
    )
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), vector.lanes), [0] * vector.lanes)
    return builder.shuffle_vector(first, ir.Constant(first.type, ir.Undefined), lanes)


def constant(vector, value):
    """Return a vector with one constant in every lane."""
    return ir.Constant(llvm_vector(vector), [value] * vector.lanes)


@intrinsic
def load(typingctx, array, offset):
    """Load the vector that starts at an offset of an array."""
    vector = VectorType(array.dtype)

    def codegen(context, builder, signature, args):
        pointer = vector_pointer(context, builder, signature.args[0], *args)
        return builder.load(pointer, align=array.dtype.bitwidth // 8)

    return vector(array, types.intp), codegen


@intrinsic
def store(typingctx, array, offset, value):
    """Store one or several adjacent vectors at an offset of an array."""

    def codegen(context, builder, signature, args):
        pointer = vector_pointer(context, builder, array, args[0], args[1], value.vectors)
        builder.store(args[2], pointer, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), codegen


def _lanes_below(builder, count):
    """Emit a mask of the first ``count`` lanes."""
    word = ir.VectorType(ir.IntType(32), LANES)
    nothing = ir.Constant(word, ir.Undefined)
    low = builder.trunc(count, ir.IntType(32))
    first = builder.insert_element(nothing, low, ir.IntType(32)(0))
    counts = builder.shuffle_vector(first, nothing, ir.Constant(word, [0] * LANES))
    return builder.icmp_signed("<", ir.Constant(word, list(range(LANES))), counts)


def _call_masked(builder, name, array_type, result, values):
    """Call LLVM's masked load or store."""
    kind = ir.FunctionType(result, [value.type for value in values])
    full_name = f"llvm.masked.{name}.v{LANES}f{array_type.dtype.bitwidth}.p0"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, full_name), values)


def emit_load_first(context, builder, array_type, array, offset, count):
    """Emit a load of the first ``count`` lanes; the other lanes are zero."""
    pointer = vector_pointer(context, builder, array_type, array, offset)
    vector, align = VectorType(array_type.dtype), ir.IntType(32)(array_type.dtype.bitwidth // 8)
    values = [pointer, align, _lanes_below(builder, count), constant(vector, 0.0)]
    return _call_masked(builder, "load", array_type, llvm_vector(vector), values)


def emit_store_first(context, builder, array_type, array, offset, value, count):
    """Emit a store of the first ``count`` lanes."""
    pointer = vector_pointer(context, builder, array_type, array, offset)
    align = ir.IntType(32)(array_type.dtype.bitwidth // 8)
    values = [value, pointer, align, _lanes_below(builder, count)]
    _call_masked(builder, "store", array_type, ir.VoidType(), values)


@intrinsic
def load_first(typingctx, array, offset, count):
    """Load the first ``count`` lanes; the others are zero, and their memory is not accessed."""

    def codegen(context, builder, signature, args):
        return emit_load_first(context, builder, array, *args)

    return VectorType(array.dtype)(array, types.intp, types.intp), codegen


@intrinsic
def store_first(typingctx, array, offset, value, count):
    """Store the first ``count`` lanes; the memory of the others is not accessed."""

    def codegen(context, builder, signature, args):
        emit_store_first(context, builder, array, *args)
        return context.get_dummy_value()

    return types.void(array, types.intp, value, types.intp), codegen


@intrinsic
def splat(typingctx, scalar):
    """Return a vector with one scalar in every lane."""
    vector = VectorType(scalar)

    def codegen(context, builder, signature, args):
        return splat_value(builder, vector, args[0])

    return vector(scalar), codegen


@intrinsic
def full_like(typingctx, vector, value):
    """Return a vector like ``vector`` with a Python number in every lane."""

    def codegen(context, builder, signature, args):
        scalar = args[1]
        if vector.scalar == types.float32:
            scalar = builder.fptrunc(scalar, ir.FloatType())
        return splat_value(builder, vector, scalar)

    return vector(vector, types.float64), codegen


def _binary(name):
    @intrinsic
    def operation(typingctx, left, right):
        def codegen(context, builder, signature, args):
            return getattr(builder, name)(*args)

        return left(left, left), codegen

    return operation


add, sub, mul, div = (_binary(name) for name in ("fadd", "fsub", "fmul", "fdiv"))


@intrinsic
def fma(typingctx, left, right, addend):
    """Compute ``left * right + addend``, rounded once."""

    def codegen(context, builder, signature, args):
        return call_fma(builder, left, args)

    return left(left, left, left), codegen


@intrinsic
def maximum(typingctx, left, right):
    """Take the larger of two numbers in every lane; NaN in ``left`` stays NaN."""

    def codegen(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered("<", *args), args[1], args[0])

    return left(left, left), codegen


def fold(builder, left, right, width):
    """Add the upper half of every group of ``2 * width`` lanes to its lower half.

    Both vectors are made of such groups, and the half groups that remain fill one vector. For
    ``width`` below 4, those of the two vectors are interleaved, so that every shuffle is a single
    instruction on machines whose registers hold 16 lanes.
    """
    if width >= 4:
        starts = [lane for lane in range(2 * LANES) if lane % (2 * width) < width]
    elif width == 2:
        starts = [q + v + r for q in range(0, LANES, 4) for v in (0, LANES) for r in (0, 1)]
    else:
        starts = [q + v + r for q in range(0, LANES, 4) for v in (0, LANES) for r in (0, 2)]
    kind = ir.VectorType(ir.IntType(32), LANES)
    low = builder.shuffle_vector(left, right, ir.Constant(kind, starts))
    high = builder.shuffle_vector(left, right, ir.Constant(kind, [s + width for s in starts]))
    return builder.fadd(low, high)


@intrinsic
def sum_lanes(typingctx, array, offset, stride):
    """Sum each of `LANES` vectors, which lie ``stride`` elements apart, over its lanes.

    Lane i of the result is the sum of the i-th vector. The 16 sums together take 45 instructions,
    where separate sums would take 8 each. The order of summation is fixed.
    """
    vector = VectorType(array.dtype)

    def codegen(context, builder, signature, args):
        sums = []
        for slot in range(LANES):
            place = builder.mul(args[2], args[2].type(4 * (slot % 4) + slot // 4))
            pointer = vector_pointer(context, builder, array, args[0], builder.add(args[1], place))
            sums.append(builder.load(pointer, align=array.dtype.bitwidth // 8))
        for width in (8, 4, 2, 1):
            pairs = zip(sums[::2], sums[1::2], strict=True)
            sums = [fold(builder, one, two, width) for one, two in pairs]
        return sums[0]

    return vector(array, types.intp, types.intp), codegen


@intrinsic
def prefetch(typingctx, array, offset):
    """Start to load the cache line of an element into the second-level cache."""

    def codegen(context, builder, signature, args):
        pointer = vector_pointer(context, builder, signature.args[0], *args)
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, word(0), word(2), word(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@intrinsic
def peek(typingctx, array, offset):
    """Load the element at an offset of an array."""

    def codegen(context, builder, signature, args):
        data = context.make_array(array)(context, builder, args[0]).data
        return builder.load(builder.gep(data, [args[1]]))

    return array.dtype(array, types.intp), codegen


@intrinsic
def poke(typingctx, array, offset, value):
    """Store the element at an offset of an array."""

    def codegen(context, builder, signature, args):
        data = context.make_array(array)(context, builder, args[0]).data
        builder.store(args[2], builder.gep(data, [args[1]]))
        return context.get_dummy_value()

    return types.void(array, types.intp, array.dtype), codegen


@intrinsic
def next_task(typingctx, counter):
    """Take the next task number, atomically, from a counter that all threads share."""

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        one = ir.Constant(data.type.pointee, 1)
        return builder.atomic_rmw("add", data, one, "monotonic")

    return types.int64(counter), codegen
