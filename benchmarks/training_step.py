"""One training step of a Caduceus network: forward, bound, backward, AdamW."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.two_pass import our_name
from seqdiff.backbones import Caduceus
from seqdiff.backbones.mamba import Mixer
from seqdiff.denoiser import Denoiser
from seqdiff.process import Absorbing
from seqdiff.training import OptimConfig, build_optimizer, decay_groups
from seqdiff.types import Inputs

SYMBOLS = 4


def make_network(
    d_model: int, n_layer: int, *, backend: str = "auto", mixer: Mixer = "mamba"
) -> Caduceus:
    """Return Caduceus-Ph for four bases and the mask, with the same weights at every call."""
    torch.manual_seed(0)
    return Caduceus(
        d_model,
        n_layer,
        num_embeddings=SYMBOLS + 1,
        num_logits=SYMBOLS,
        backend=backend,
        mixer=mixer,
    )


def loss_and_gradients(loss: Tensor, network: nn.Module) -> dict[str, Tensor]:
    """Return a loss and its gradients by our parameter names, then clear the gradients."""
    loss.backward()
    named = dict(network.named_parameters())
    grads = {our_name(n): p.grad.clone() for n, p in named.items() if p.grad is not None}
    network.zero_grad()
    return {"loss": loss.detach(), **grads}


class TrainingStep:
    """A network, its optimiser and one batch with half of the tokens masked on average.

    Args:
        network: The network; it is moved to the device and its parameters are trained.
        batch: Rows.
        length: Bases of a row.
        device: ``cpu`` or ``cuda``.
        dtype: Type of the activations; types other than float32 use autocast.
    """

    def __init__(
        self,
        network: Caduceus,
        batch: int,
        length: int,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.network = network.to(device)
        self.process = Absorbing(SYMBOLS)
        self.denoiser = Denoiser(self.network, self.process)
        self.optimizer = build_optimizer(
            self.denoiser, OptimConfig(lr=1e-3), decay_groups(self.denoiser)
        )
        self.tokens = batch * length
        source = torch.Generator().manual_seed(0)
        x0 = torch.randint(SYMBOLS, (batch, length), generator=source)
        t = (torch.arange(batch) + 0.5) / batch
        noise = torch.rand(batch, length, dtype=torch.float64, generator=source)
        x_t = self.process.corrupt(x0, t, noise=noise)
        self.x0, self.x_t, self.t = (tensor.to(device) for tensor in (x0, x_t, t))
        self.autocast = torch.autocast(device, dtype, enabled=dtype != torch.float32)

    def loss(self) -> Tensor:
        """Return the bound in nats per base."""
        with self.autocast:
            inputs = Inputs(self.x_t, self.t)
            nats = self.denoiser.nats(inputs, self.x0, self.x_t == SYMBOLS)
        weight = self.process.schedule.nelbo_weight(self.t).to(nats.dtype)
        return (nats * weight[:, None]).sum() / self.tokens

    def numbers(self) -> dict[str, Tensor]:
        """Return the loss and every gradient before any step, by our parameter names."""
        return loss_and_gradients(self.loss(), self.network)

    def __call__(self) -> None:
        """Take one step."""
        self.loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
