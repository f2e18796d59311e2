"""How Lightning reads a ``SequenceDataModule``, and where in its stream a run stands."""

from __future__ import annotations

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from seqdiff.data import SequenceDataModule
from seqdiff.types import Batch


class DataLoaders(LightningDataModule):
    """Lightning's hooks over a data module.

    A checkpoint holds the position in examples, so a resumed run continues exactly there even if
    the number of devices or the batch size has changed. Lightning stores it under the name of the
    class: see ``loaders``.

    Attributes:
        data: The data module.
    """

    def __init__(self, data: SequenceDataModule) -> None:
        super().__init__()
        self.data = data
        self._start = 0
        self._start_step: int | None = None

    @property
    def position(self) -> int:
        """Examples of the stream that have entered an optimizer step."""
        if self._start_step is None or self.trainer is None:
            return self._start
        steps = self.trainer.global_step - self._start_step
        per_step = self.trainer.world_size * self.trainer.accumulate_grad_batches
        return self._start + steps * self.data.batch_size * per_step

    def prepare_data(self) -> None:
        """Build caches, in one process per machine."""
        self.data.prepare()

    def train_dataloader(self) -> DataLoader[Batch]:
        """Read the training stream from where the run stands."""
        assert self.trainer is not None
        self._start, self._start_step = self.position, self.trainer.global_step
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        return self.data.training_loader(rank=rank, world_size=world_size, start=self._start)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Read this device's part of the validation split."""
        assert self.trainer is not None
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        return self.data.evaluation_loader("valid", rank=rank, world_size=world_size)

    def state_dict(self) -> dict[str, int]:
        """Give the position, for a checkpoint."""
        return {"position": self.position}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Continue from the position of a checkpoint."""
        self._start, self._start_step = state_dict["position"], None


def loaders(data: SequenceDataModule) -> DataLoaders:
    """Wrap a data module in a class of its name, the key of its position in checkpoints."""
    name = type(data).__qualname__
    return type(name, (DataLoaders,), {"__qualname__": name})(data)
