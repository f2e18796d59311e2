"""Training in several processes; fully sharded, with checkpoints like those of one device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer


def is_first_process() -> bool:
    """Whether this is the only process, or the first one that a strategy launched."""
    return getattr(rank_zero_only, "rank", 0) == 0


def whole(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor on every device; all devices must call this. Others stay as is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sharded_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Shard a tensor that every device holds as another one is; plain ones stay as they are."""
    if not isinstance(like, DTensor) or isinstance(tensor, DTensor):
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)


def list_layers(network: nn.Module) -> list[nn.Module]:
    """Return what a network repeats: the modules in its lists of modules."""
    lists = (part for part in network.children() if isinstance(part, nn.ModuleList))
    return [layer for part in lists for layer in part]


class ShardedStrategy(ModelParallelStrategy):
    """Shards weights, gradients and optimizer states over all devices by PyTorch's FSDP2.

    The first process writes whole tensors under their usual names and numbers into one file, so
    that any number of devices resumes from it with any strategy. Lightning's FSDPStrategy uses
    FSDP1 instead, which needs a GPU and cannot clip gradients.
    """

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False)

    def setup_environment(self) -> None:
        """Start the process group, and use all its devices for shards."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def shard(self, module: nn.Module, layers: nn.Module, *steps: str) -> None:
        """Shard a module in place.

        A device holds the whole weights of one layer at a time, and of what lies outside of layers
        during a step. A layer's weights are whole only in its ``forward`` and in the methods that
        its class names in ``forward_methods``.

        Args:
            module: The module.
            layers: A part of it, whose lists of modules are the layers.
            steps: The methods of the module that use its weights.
        """
        mesh = self.device_mesh["data_parallel"]
        for layer in list_layers(layers):
            fully_shard(layer, mesh=mesh)
            for method in getattr(layer, "forward_methods", ()):
                register_fsdp_forward_method(layer, method)
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
        for step in steps:
            register_fsdp_forward_method(module, step)

    def _gather(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Gather tensors on the CPU of the first process; the others get nothing."""
        found = {}
        for name, value in tensors.items():
            gathered = whole(value) if isinstance(value, Tensor) else value
            if self.is_global_zero:
                found[name] = gathered.cpu() if isinstance(gathered, Tensor) else gathered
        return found

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Gather the weights in the first process."""
        assert self.lightning_module is not None
        return self._gather(self.lightning_module.state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Gather the state of an optimizer in the first process."""
        state = optimizer.state_dict()
        states = {number: self._gather(values) for number, values in state["state"].items()}
        return {**state, "state": states}

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint in every process, and shard its weights and optimizer states."""
        checkpoint = self.checkpoint_io.load_checkpoint(checkpoint_path, weights_only=weights_only)
        assert self.lightning_module is not None
        weights = self.lightning_module.state_dict()
        found = checkpoint["state_dict"]
        self.lightning_module.load_state_dict(
            {name: sharded_like(found[name], weight) for name, weight in weights.items()}
        )
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            numbers = [number for group in state["param_groups"] for number in group["params"]]
            states = {
                number: {
                    name: sharded_like(value, like) if value.shape == like.shape else value
                    for name, value in state["state"][number].items()
                }
                for number, like in zip(numbers, parameters, strict=True)
                if number in state["state"]
            }
            optimizer.load_state_dict({**state, "state": states})
        return checkpoint
