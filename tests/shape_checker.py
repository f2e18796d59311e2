"""Checks the types and shapes of every annotated call of our packages, at little cost.

jaxtyping's own wrapper checks the arguments before the call and again after it, and binds them to
their names for sizes such as ``{n}``. In tests of small arrays this took longer than the work, so
it serves only where a size is named so.
"""

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, get_args

import jaxtyping
import torch
from jaxtyping import AbstractArray, _decorator, install_import_hook

_jaxtyped = jaxtyping.jaxtyped
_SHAPES = _jaxtyped("context")  # sizes that arrays inside of it share


def install(modules: Sequence[str]) -> None:
    """Check the functions and dataclasses of modules, which must not be imported yet."""
    jaxtyping.jaxtyped = _decorator.jaxtyped = checked
    install_import_hook(modules, "beartype.beartype")


def checked(fn: Any = None, *, typechecker: Callable) -> Any:
    """Stand in for ``jaxtyped``, which the import hook applies to all functions and classes."""
    if fn is None:
        return functools.partial(checked, typechecker=typechecker)
    if not inspect.isfunction(fn) or inspect.isgeneratorfunction(fn) or _names_a_size(fn):
        return _jaxtyped(fn, typechecker=typechecker)
    twin = types.FunctionType(
        fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__
    )
    twin.__kwdefaults__, twin.__qualname__ = fn.__kwdefaults__, fn.__qualname__
    twin.__module__ = fn.__module__
    twin.__annotations__ = {
        name: _decorator._destring_annotation(hint, fn.__globals__)
        for name, hint in fn.__annotations__.items()
    }
    shaped = any(map(_has_array, twin.__annotations__.values()))
    if "<locals>" in fn.__qualname__ and not shaped:
        return fn  # FlexAttention counts the arguments of a mask function, and a wrapper hides them
    typed = typechecker(twin)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (fn if _unchecked() else typed)(*args, **kwargs)

    @functools.wraps(fn)
    def call_with_arrays(*args: Any, **kwargs: Any) -> Any:
        if _unchecked():
            return fn(*args, **kwargs)
        with _SHAPES:
            return typed(*args, **kwargs)

    return call_with_arrays if shaped else call


def _unchecked() -> bool:
    """Whether checks are off, or ``torch.compile`` is tracing, which cannot trace a check."""
    return jaxtyping.config.jaxtyping_disable or torch.compiler.is_compiling()


def _names_a_size(fn: types.FunctionType) -> bool:
    return any("{" in str(hint) for hint in fn.__annotations__.values())


def _has_array(hint: Any) -> bool:
    array = isinstance(hint, type) and issubclass(hint, AbstractArray)
    return array or any(map(_has_array, get_args(hint)))
