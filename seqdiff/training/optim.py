"""AdamW and Muon with the decay groups of the field, and the learning rate by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from seqdiff.training.config import OptimConfig


def lr_factor(
    config: OptimConfig, step: int, max_steps: int | None, time_fraction: float = 0.0
) -> float:
    """The learning rate of optimizer step ``step`` (from 0), as a fraction of ``config.lr``.

    Linear warm-up from ``1 / warmup_steps`` to 1, then constant, or down to ``min_lr`` at the end
    of the run: by a half cosine (Loshchilov and Hutter 2017, arXiv:1608.03983, without restarts),
    or linearly in its last part (Hu et al. 2024, arXiv:2404.06395).

    Args:
        config: Schedule and its lengths.
        step: Optimizer steps already done.
        max_steps: Length of the run; ``None`` if only time limits it.
        time_fraction: Fraction of the run's time that is over, which counts if it is larger than
            the fraction of the steps after the warm-up.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    progress = time_fraction
    if max_steps is not None:
        span = max(1, max_steps - config.warmup_steps)
        progress = max(progress, (step - config.warmup_steps) / span)
    progress = min(1.0, progress)
    floor = config.min_lr / config.lr
    if config.schedule == "wsd":
        return floor + (1 - floor) * min(1.0, (1 - progress) / config.decay_fraction)
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


def muon_matrices(module: nn.Module) -> set[str]:
    """List the parameters that Muon trains: the decaying matrices, but for those of the head.

    Matrices marked ``_no_muon = True`` are left out too: filters, those that choose the step sizes
    of a state-space model, and those that read conditions. Source: Jordan et al. 2024, "Muon: an
    optimizer for hidden layers in neural networks", which leaves embeddings and heads to AdamW.

    Args:
        module: A denoiser, or another module with a ``backbone``.
    """
    decayed, _ = decay_groups(module)
    parameters = dict(module.named_parameters())
    inner = {n: parameters[n] for n in decayed if "head" not in n.split(".")}
    return {n for n, p in inner.items() if p.ndim == 2 and not getattr(p, "_no_muon", False)}


def _evaluate(closure: Callable[[], Any] | None) -> Any:
    """Evaluate the loss with its gradients, if there is a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class Muon(torch.optim.Muon):
    """``torch.optim.Muon``, but with products in float32 on a CPU.

    PyTorch computes them in bfloat16 on every device. A CPU without bfloat16 instructions emulates
    them, which is many times slower than float32 (``benchmarks/muon.py``). Source: Jordan et al.
    2024, "Muon: an optimizer for hidden layers in neural networks".
    """

    def __init__(self, groups: list[dict[str, Any]], weight_decay: float) -> None:
        """Begin without momentum; the momentum is .95, with Nesterov's correction.

        Args:
            groups: Matrices (``params``) and their learning rate (``lr``).
            weight_decay: Of all groups.
        """
        super().__init__(groups, weight_decay=weight_decay)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all matrices that have gradients.

        Args:
            closure: Evaluates the loss with its gradients.
        """
        loss = _evaluate(closure)
        for group in self.param_groups:
            momentum, decay = group["momentum"], 1 - group["lr"] * group["weight_decay"]
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(matrix.grad)
                mean = state["momentum_buffer"].lerp_(matrix.grad, 1 - momentum)
                direction = _orthogonalized(
                    matrix.grad.lerp(mean, momentum), group["ns_coefficients"], group["ns_steps"]
                )
                rate = group["lr"] * math.sqrt(max(1.0, matrix.size(0) / matrix.size(1)))
                matrix.mul_(decay).add_(direction, alpha=-rate)
        return loss


def _orthogonalized(matrix: Tensor, coefficients: tuple[float, float, float], steps: int) -> Tensor:
    """Divide by the Frobenius norm, then bring all singular values close to 1.

    Each of the ``steps`` maps a singular value s to ``a s + b s^3 + c s^5``.
    """
    a, b, c = coefficients
    at_least_single = torch.promote_types(matrix.dtype, torch.float32)
    x = matrix.to(torch.bfloat16 if matrix.is_cuda else at_least_single)
    is_tall = matrix.size(0) > matrix.size(1)
    x = x.T if is_tall else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(steps):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x


class MuonWithAdamW(Optimizer):
    """Muon for some parameters and AdamW for the others, with one state and one step."""

    def __init__(self, muon: Muon | None, adamw: AdamW | None) -> None:
        """Combine.

        Args:
            muon: Over matrices.
            adamw: Over other parameters.
        """
        self._both = [optimizer for optimizer in (muon, adamw) if optimizer is not None]
        groups = [group for optimizer in self._both for group in optimizer.param_groups]
        super().__init__(groups, {})
        self._share()

    def _share(self) -> None:
        """Give both optimizers the groups and the state of this one."""
        first = 0
        for optimizer in self._both:
            last = first + len(optimizer.param_groups)
            optimizer.param_groups = self.param_groups[first:last]
            optimizer.state = self.state
            first = last

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Restore the state of both."""
        super().load_state_dict(state_dict)
        self._share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters.

        Args:
            closure: Evaluates the loss with its gradients.
        """
        loss = _evaluate(closure)
        for optimizer in self._both:
            optimizer.step()
        return loss


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
    matrices: Collection[str] = (),
) -> AdamW | MuonWithAdamW:
    """Build AdamW, or Muon and AdamW, over the two decay groups, divided by learning rate.

    Args:
        module: The network.
        config: Learning rate, decay and AdamW's constants.
        groups: From ``decay_groups``, called before a strategy shards the network.
        scales: From ``lr_scales``, likewise.
        matrices: From ``muon_matrices``, likewise; they are used if ``muon_lr`` is set.

    Raises:
        ValueError: If there is nothing to train.
    """
    if not any(groups):
        raise ValueError(
            f"build_optimizer.module must have a parameter that requires a gradient, got none in "
            f"{type(module).__name__}; unfreeze it"
        )
    parameters, scales = dict(module.named_parameters()), scales or {}
    muon: list[dict[str, Any]] = []
    if config.muon_lr is not None:
        groups = ([n for n in groups[0] if n not in matrices], groups[1])
        for scale in sorted({scales.get(name, 1.0) for name in matrices}):
            chosen = [parameters[n] for n in sorted(matrices) if scales.get(n, 1.0) == scale]
            muon.append({"params": chosen, "lr": scale * config.muon_lr})
    found = []
    for names, decay in zip(groups, (config.weight_decay, 0.0), strict=True):
        for scale in sorted({scales.get(name, 1.0) for name in names}):
            chosen = [parameters[name] for name in names if scales.get(name, 1.0) == scale]
            found.append({"params": chosen, "weight_decay": decay, "lr": scale * config.lr})
    adamw = AdamW(found, lr=config.lr, betas=config.betas, eps=config.eps)
    if not muon:
        return adamw
    return MuonWithAdamW(Muon(muon, weight_decay=config.weight_decay), adamw)
