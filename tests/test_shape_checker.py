"""The checker of types and shapes that runs beside all other tests finds what it is for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from beartype import beartype
from jaxtyping import Float, Int64
from torch import Tensor

from seqdiff.blocks import spread
from seqdiff.process import Absorbing
from tests.shape_checker import checked

check = checked(typechecker=beartype)
WRONG = r"violates type hint|Type-check error"


@check
def pick(x: Float[Tensor, "n k"], at: Int64[Tensor, " n"], less: int = 0) -> Float[Tensor, " n"]:
    """Right if nothing is left out."""
    return x.gather(-1, at[:, None])[less:, 0]


@check
def blank(count: int) -> Float[Tensor, " {count}"]:
    return torch.zeros(abs(count))


@check
def name(count: int, of: list[str] | None = None) -> str:
    return "a" if count else of  # type: ignore[return-value]


@checked(typechecker=beartype)
@dataclass
class Rows:
    ids: Int64[Tensor, "b n"]
    seen: Float[Tensor, "b n"] | None = None


FLOATS, IDS = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
RIGHT = {
    "shapes": lambda: pick(FLOATS, IDS),
    "sizes of another call": lambda: (pick(FLOATS, IDS), pick(FLOATS[:2], IDS[:2])),
    "a named size": lambda: blank(2),
    "types": lambda: name(1),
    "a dataclass": lambda: Rows(IDS[None], FLOATS[None, :, 0]),
    "our function": lambda: spread(torch.zeros(2, 3), 2, 5),
}
BROKEN = {
    "another size": lambda: pick(FLOATS, IDS[:2]),
    "another number of axes": lambda: pick(FLOATS[0], IDS),
    "another dtype": lambda: pick(FLOATS.long(), IDS),
    "a result of another size": lambda: pick(FLOATS, IDS, 1),
    "a result of another named size": lambda: blank(-2),
    "another type": lambda: name("1"),
    "another type inside": lambda: name(1, [2]),
    "a result of another type": lambda: name(0),
    "a dataclass of other sizes": lambda: Rows(IDS[None], FLOATS),
    "our function of ids": lambda: spread([0.0], 2, 5),
    "our class": lambda: Absorbing("4"),
}


@pytest.mark.parametrize("call", RIGHT.values(), ids=RIGHT)
def test_right_calls_pass(call) -> None:
    call()


@pytest.mark.parametrize("call", BROKEN.values(), ids=BROKEN)
def test_wrong_calls_raise(call) -> None:
    with pytest.raises(Exception, match=WRONG):
        call()


@pytest.mark.usefixtures("unchecked")
def test_users_have_no_checker() -> None:
    assert pick(FLOATS, IDS, 1).shape == (2,) and name(0) is None
    assert Rows(IDS[None], FLOATS).seen is FLOATS
