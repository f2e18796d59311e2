"""Exponential and logarithm of SIMD vectors in Numba kernels, by near-minimax polynomials."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba.extending import intrinsic
from numpy.polynomial import Chebyshev, Polynomial

from seqdiff.ops.cpu_simd.vectors import call_fma, constant, llvm_vector


def _fit(function, degree, low, high):
    """Interpolate a function at Chebyshev nodes, which is close to the minimax polynomial.

    Returns the coefficients in ascending order of degree.
    """
    fit = Chebyshev.interpolate(function, degree, domain=[low, high])
    return [float(c) for c in fit.convert(kind=Polynomial).coef]


def _horner(builder, vector, x, coefficients):
    """Emit the evaluation of a polynomial at x, by Horner's scheme with fused multiply-adds."""
    *rest, result = [constant(vector, c) for c in coefficients]
    for coefficient in reversed(rest):
        result = call_fma(builder, vector, [result, x, coefficient])
    return result


@intrinsic
def exp2(typingctx, value):
    """Raise two to the power of each lane, with results clamped to the range of normal numbers.

    The exponent is split into an integer and a fraction in [-0.5, 0.5]. A polynomial computes the
    power of the fraction, and the integer is added to the exponent bits of the result.
    """
    bits = value.scalar.bitwidth
    mantissa, bias, degree = (23, 127, 5) if bits == 32 else (52, 1023, 12)
    terms = _fit(lambda f: 2.0**f, degree, -0.5, 0.5)

    def codegen(context, builder, signature, args):
        x, whole = args[0], ir.VectorType(ir.IntType(bits), value.lanes)
        low, high = constant(value, 1.0 - bias), constant(value, float(bias))
        x = builder.select(builder.fcmp_ordered("<", x, low), low, x)
        x = builder.select(builder.fcmp_ordered(">", x, high), high, x)
        # Adding this number rounds x to an integer, which is then in the low bits of the sum.
        magic = constant(value, 1.5 * 2.0**mantissa)
        shifted = builder.fadd(x, magic)
        fraction = builder.fsub(x, builder.fsub(shifted, magic))
        result = builder.bitcast(_horner(builder, value, fraction, terms), whole)
        shift = ir.Constant(whole, [mantissa] * value.lanes)
        exponent = builder.shl(builder.bitcast(shifted, whole), shift)
        return builder.bitcast(builder.add(result, exponent), llvm_vector(value))

    return value(value), codegen


@intrinsic
def log1p(typingctx, value):
    """Compute ``log(1 + value)`` as ``2 artanh(value / (2 + value))``, for values in [0, 1]."""
    terms = _fit(_artanh_ratio, 4 if value.scalar.bitwidth == 32 else 9, 0.0, 1 / 9)

    def codegen(context, builder, signature, args):
        two = constant(value, 2.0)
        s = builder.fdiv(args[0], builder.fadd(args[0], two))
        series = _horner(builder, value, builder.fmul(s, s), terms)
        return builder.fmul(builder.fmul(s, two), series)

    return value(value), codegen


def _artanh_ratio(w):
    """Compute ``artanh(sqrt(w)) / sqrt(w)``."""
    root = np.sqrt(np.maximum(w, 1e-300))
    return np.arctanh(root) / root
