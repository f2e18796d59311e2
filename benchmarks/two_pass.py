"""The published bidirectional layer, two whole Mamba passes, with the weights of our network.

Source: Schiff et al. 2024, arXiv:2403.03234, section 3.1: one Mamba layer reads the row, another
the reversed row, with shared input and output projections, and the output of the second is reversed
and added. The Mamba layer is mambapy's on the CPU and mamba_ssm's on CUDA; both use the same
parameter names.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from seqdiff.backbones import Caduceus
from seqdiff.backbones.caduceus import CaduceusConfig

# Parameter names of the other side and ours.
_RENAMED = (("fwd.in_proj", "in_proj"), ("fwd.out_proj", "out_proj"), ("conv1d.", "conv_"))

MakeLayer = Callable[[CaduceusConfig], nn.Module]


class TwoPass(nn.Module):
    """Two Mamba layers with shared projections, one of them on the reversed row."""

    def __init__(self, fwd: nn.Module, rev: nn.Module) -> None:
        super().__init__()
        self.fwd, self.rev = fwd, rev
        for name in ("in_proj", "out_proj"):
            rev.register_module(name, fwd.get_submodule(name))

    def forward(
        self, x: Tensor, padding: Tensor | None = None, *, mirrored: bool = False
    ) -> Tensor:
        """Mix along the row in both directions."""
        assert padding is None and not mirrored  # the benchmarks use neither
        return self.fwd(x) + self.rev(x.flip(1)).flip(1)


def mambapy_layer(config: CaduceusConfig) -> nn.Module:
    """Return one direction with mambapy's parallel scan."""
    from mambapy.mamba import MambaBlock, MambaConfig

    mamba = config.mamba
    return MambaBlock(
        MambaConfig(
            d_model=config.d_model,
            n_layers=1,
            dt_rank=mamba.rank(config.d_model),
            d_state=mamba.d_state,
            expand_factor=mamba.expand,
            d_conv=mamba.d_conv,
            bias=mamba.bias,
            conv_bias=mamba.conv_bias,
        )
    )


def mamba_ssm_layer(config: CaduceusConfig) -> nn.Module:
    """Return one direction with mamba_ssm's own module and fused kernels.

    Raises:
        ImportError: If mamba_ssm is not installed.
    """
    from mamba_ssm import Mamba  # pyright: ignore[reportMissingImports]

    mamba = config.mamba
    return Mamba(
        d_model=config.d_model,
        d_state=mamba.d_state,
        d_conv=mamba.d_conv,
        expand=mamba.expand,
        dt_rank=mamba.rank(config.d_model),
        bias=mamba.bias,
        conv_bias=mamba.conv_bias,
    )


def our_name(name: str) -> str:
    """Return our name of a parameter of the two-pass network."""
    for theirs, ours in _RENAMED:
        name = name.replace(theirs, ours)
    return name


def two_pass_twin(network: Caduceus, make_layer: MakeLayer) -> Caduceus:
    """Return a network with the same weights whose mixers run two passes.

    Args:
        network: Our network, with ``add`` and shared projections; it is not changed.
        make_layer: Makes the layer of one direction.
    """
    twin = copy.deepcopy(network)
    for block in twin.layers:
        block.register_module(
            "mixer", TwoPass(make_layer(network.config), make_layer(network.config))
        )
    ours = dict(network.named_parameters())
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            parameter.copy_(ours[our_name(name)].reshape(parameter.shape))
    return twin
