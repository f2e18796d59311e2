"""How threads share out a kernel's tasks."""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic


@intrinsic
def next_task(typingctx, counter):
    """Take the next number from a shared counter, atomically, so that threads share out tasks."""

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        one = ir.Constant(data.type.pointee, 1)
        return builder.atomic_rmw("add", data, one, "monotonic")

    return types.int64(counter), codegen
