"""AdamW with the decay groups of the field, and the learning rate as a function of the step."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import nn
from torch.optim import AdamW

from seqdiff.training.config import OptimConfig


def lr_factor(config: OptimConfig, step: int, max_steps: int) -> float:
    """The learning rate of optimizer step ``step`` (from 0), as a fraction of ``config.lr``.

    Linear warm-up from ``1 / warmup_steps`` to 1, then constant, or a half cosine that reaches
    ``min_lr`` at ``max_steps`` (Loshchilov and Hutter 2017, arXiv:1608.03983, without restarts).

    Args:
        config: Schedule and its lengths.
        step: Optimizer steps already done.
        max_steps: Length of the run; only the cosine depends on it.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    span = max(1, max_steps - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / span)
    floor = config.min_lr / config.lr
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))


def decay_groups(module: nn.Module) -> tuple[list[str], list[str]]:
    """Split parameter names into those that decay and those that do not.

    No decay for vectors (biases, the gains of norms, a state-space model's D), for embeddings, and
    for anything marked ``_no_weight_decay = True`` (a state-space model's A_log). That is the split
    of Mamba (Gu and Dao 2023, arXiv:2312.00752) and of its bidirectional relatives.

    Args:
        module: The network; shared parameters count once.

    Returns:
        Names with decay and names without; each parameter is in exactly one of the two.
    """
    exempt: set[int] = set()
    for owner in module.modules():
        is_embedding = isinstance(owner, nn.Embedding | nn.EmbeddingBag)
        for parameter in owner.parameters(recurse=False):
            marked = getattr(parameter, "_no_weight_decay", False)
            if is_embedding or marked or parameter.ndim < 2:
                exempt.add(id(parameter))
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    decayed = [name for name, parameter in trained if id(parameter) not in exempt]
    plain = [name for name, parameter in trained if id(parameter) in exempt]
    return decayed, plain


def lr_scales(module: nn.Module) -> dict[str, float]:
    """List the parameters with a learning rate of their own, marked by ``_lr_scale``.

    Returns:
        By name, the factor by which the learning rate is multiplied.
    """
    scales = {n: getattr(p, "_lr_scale", 1.0) for n, p in module.named_parameters()}
    return {name: scale for name, scale in scales.items() if scale != 1}


def build_optimizer(
    module: nn.Module,
    config: OptimConfig,
    groups: tuple[list[str], list[str]],
    scales: Mapping[str, float] | None = None,
) -> AdamW:
    """Build AdamW over the two decay groups, divided by learning rate.

    Args:
        module: The network.
        config: Learning rate, decay and AdamW's constants.
        groups: From ``decay_groups``, called before a strategy shards the network.
        scales: From ``lr_scales``, likewise.

    Raises:
        ValueError: If there is nothing to train.
    """
    if not any(groups):
        raise ValueError(
            f"build_optimizer.module must have a parameter that requires a gradient, got none in "
            f"{type(module).__name__}; unfreeze it"
        )
    parameters, scales = dict(module.named_parameters()), scales or {}
    found = []
    for names, decay in zip(groups, (config.weight_decay, 0.0), strict=True):
        for scale in sorted({scales.get(name, 1.0) for name in names}):
            chosen = [parameters[name] for name in names if scales.get(name, 1.0) == scale]
            found.append({"params": chosen, "weight_decay": decay, "lr": scale * config.lr})
    return AdamW(found, lr=config.lr, betas=config.betas, eps=config.eps)
