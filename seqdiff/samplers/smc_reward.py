"""What a reward must be: a function of rows of ids that gives one number a row."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Int64
from torch import Tensor

_WANTED = "take ids [n, L] and give a tensor with one number a row, [n]"
_FIX = "write a function like lambda ids: (ids == 0).double().mean(dim=-1)"


def reward_name(reward: Callable) -> str:
    """Name a reward for a message, as it would be imported where it can be."""
    name = getattr(reward, "__qualname__", type(reward).__qualname__)
    return f"{getattr(reward, '__module__', None) or '?'}.{name}"


def one_a_row(reward: Callable, rewards: object, rows: int) -> Tensor:
    """Give back what a reward gave, if it is a tensor with one number for each of the rows.

    Raises:
        ValueError: If not; names the reward.
    """
    if isinstance(rewards, Tensor) and rewards.shape == (rows,):
        return rewards
    got = f"a {type(rewards).__name__}"
    if isinstance(rewards, Tensor):
        got = f"shape {tuple(rewards.shape)}"
    raise ValueError(
        f"SMCSampler.reward must {_WANTED}, got {got} from {reward_name(reward)} for {rows} rows; "
        f"{_FIX}"
    )


def try_reward(reward: Callable, row: Int64[Tensor, "1 L"]) -> None:
    """Ask a reward about a row, twice at once, whatever numbers it gives.

    Raises:
        ValueError: If it does not take the row, or does not give a number each; names the reward.
    """
    try:
        given = reward(row.repeat(2, 1))
    except Exception as error:
        said = " ".join(str(error).split())
        raise ValueError(
            f"SMCSampler.reward must {_WANTED}, got {type(error).__name__} from "
            f"{reward_name(reward)}: {said}; {_FIX}"
        ) from error
    one_a_row(reward, given, 2)
