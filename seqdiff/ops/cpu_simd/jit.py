"""Decorators for the functions that CPU kernels call."""

from __future__ import annotations

from typing import Any

from numba import njit

# Only kernels call these functions, so they need no wrappers for callers in Python and C. Without
# the wrappers, a kernel compiles in four fifths of the time.
_NO_ENTRIES: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

inner = njit(**_NO_ENTRIES)
"""Compile a function that only kernels call."""

inlined = njit(forceinline=True, **_NO_ENTRIES)
"""Compile a function that only kernels call, and always inline it."""
