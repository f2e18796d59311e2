"""The loaders drop and repeat nothing, and give the same stream however it is divided."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqdiff.data.datamodule import EvaluationBatches, SequenceDataModule
from seqdiff.data.dataset import SequenceDataset, TrainingStream
from seqdiff.rng import AUGMENT_STREAM, CounterNoise
from tests.integration.toy_domain import ToyData


@given(examples=st.integers(1, 60), batch_size=st.integers(1, 9), world_size=st.integers(1, 5))
def test_shares_partition_the_split(examples, batch_size, world_size):
    shares = [
        list(EvaluationBatches(examples, batch_size, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    seen = [place for share in shares for batch in share for place in batch]
    assert sorted(seen) == list(range(examples))
    assert all(1 <= len(batch) <= batch_size for share in shares for batch in share)
    rounds = -(-examples // (batch_size * world_size))
    if examples >= rounds * world_size:
        assert {len(share) for share in shares} == {rounds}


def stream(data: SequenceDataModule, steps: int, **where: int) -> list:
    return [batch for _, batch in zip(range(steps), data.training_loader(**where), strict=False)]


class Recorder(SequenceDataset):
    """Rows that contain their own index; records the randomness of each."""

    def __init__(self, size):
        self.size, self.seen = size, []

    def __len__(self):
        return self.size

    def rows(self, indices):
        return indices[:, None], np.ones((len(indices), 1), dtype=bool)

    def augment(self, rows, uniform):
        self.seen.append(uniform)
        return rows


class Numbered(ToyData):
    """48 training rows, 13 of validation; each contains its own index."""

    def dataset(self, split):
        return Recorder(len(super().dataset(split)))


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_devices_share_out_each_epoch_without_overlap(devices: int) -> None:
    """Each row once in an epoch over all devices, and every step has the same global batch."""
    alone = [batch.tokens[:, 0].tolist() for batch in stream(Numbered(batch_size=8), 12)]
    parts = [
        stream(Numbered(batch_size=8 // devices), 12, rank=rank, world_size=devices)
        for rank in range(devices)
    ]
    shared = [[batch.tokens[:, 0].tolist() for batch in step] for step in zip(*parts, strict=True)]
    assert [[row for part in step for row in part] for step in shared] == alone
    epochs = [sorted(row for step in alone[n : n + 6] for row in step) for n in (0, 6)]
    assert epochs == [list(range(48))] * 2


@pytest.mark.parametrize("devices", [1, 2, 4, 5, 14])
def test_devices_share_out_validation_without_overlap_or_padding(devices: int) -> None:
    data, seen = Numbered(batch_size=2), []
    for rank in range(devices):
        for batch in data.evaluation_loader("valid", rank=rank, world_size=devices):
            assert bool(batch.loss_mask.all())
            seen += batch.tokens[:, 0].tolist()
    assert sorted(seen) == list(range(13))


def test_stream_does_not_depend_on_devices_workers_or_batch_size():
    whole = torch.cat([b.tokens for b in stream(ToyData(batch_size=8), 5)])
    small = torch.cat([b.tokens for b in stream(ToyData(batch_size=2), 20)])
    workers = torch.cat([b.tokens for b in stream(ToyData(batch_size=8, num_workers=2), 5)])
    ranks = [stream(ToyData(batch_size=4), 5, rank=rank, world_size=2) for rank in range(2)]
    devices = torch.cat([b.tokens for pair in zip(*ranks, strict=True) for b in pair])
    later = torch.cat([b.tokens for b in stream(ToyData(batch_size=8), 3, start=16)])
    for other in (small, workers, devices):
        assert torch.equal(whole, other)
    assert torch.equal(whole[16:], later)


def test_stream_is_shuffled_anew_each_epoch_and_depends_on_the_seed():
    data = ToyData(batch_size=ToyData.num_train)
    first, second = stream(data, 2)
    data.seed = 1
    (other,) = stream(data, 1)
    assert not torch.equal(first.tokens, second.tokens)
    assert not torch.equal(first.tokens, other.tokens)
    rows = [
        sorted(min(row, row[::-1]) for row in batch.tokens.tolist())
        for batch in (first, second, other)
    ]
    assert rows[0] == rows[1] == rows[2]


def by_definition(size, seed, position):
    """Row and randomness of one position, computed independently of others."""
    order = np.random.default_rng((seed, position // size)).permutation(size)
    noise = CounterNoise(seed).uniform(torch.tensor([position]), 1, stream=AUGMENT_STREAM)
    return order[position % size], float(noise)


@pytest.mark.parametrize("size", [7, 5000])
def test_a_position_holds_what_the_seed_and_the_position_say(size):
    """Independent of what was read before, in any order, across epochs and blocks of noise."""
    data = Recorder(size)
    stream = TrainingStream(data, seed=11)
    jumps = [[0, 1, 2], [4094, 4095, 4096, 4097], [3], [20_000, 3, 12_287, 12_288], [4096], [9, 0]]
    for positions in jumps:
        batch = stream.__getitems__(positions)
        expected = [by_definition(size, 11, p) for p in positions]
        assert batch.tokens[:, 0].tolist() == [row for row, _ in expected]
        assert data.seen[-1].tolist() == [draw for _, draw in expected]
        assert batch.index.tolist() == positions
        broken = [by_definition(size, 0, p)[1] for p in positions]
        assert data.seen[-1].tolist() != broken


class Counting(TrainingStream):
    """Records the epochs whose order it has drawn."""

    def __init__(self, size):
        self.drawn = []
        super().__init__(Recorder(size), seed=0)

    def _permutation(self, epoch):
        self.drawn.append(epoch)
        return super()._permutation(epoch)


def test_an_order_is_drawn_once_while_it_is_near_and_given_up_when_it_is_far():
    """Loaders cross the end of an epoch and return; ten epochs of a genome would fill
    the memory.
    """
    stream = Counting(10)
    for _ in range(3):
        for positions in ([8, 9], [9, 10], [10, 11], [9]):
            stream.__getitems__(positions)
    assert stream.drawn == [0, 1]
    stream = Counting(10)
    for _ in range(2):
        for position in range(0, 100, 5):
            stream[position]
    assert stream.drawn == [*range(10), *range(10)]


def test_evaluation_reads_every_example_once():
    data = ToyData(batch_size=3, eval_batch_size=5)
    index = torch.cat([b.index for b in data.evaluation_loader("valid")])
    assert index.tolist() == list(range(len(data.dataset("valid"))))


@pytest.mark.parametrize(("limit", "rows"), [(2, 10), (0.5, 6), (99, 13), (0.01, 1)])
def test_a_limit_means_the_same_rows_on_any_number_of_devices(limit: float, rows: int) -> None:
    """Batches over all devices, or a fraction of the rows."""
    data = ToyData(batch_size=3, eval_batch_size=5)
    for devices in (1, 2, 3):
        parts = [
            batch.index
            for rank in range(devices)
            for batch in data.evaluation_loader("valid", limit=limit, rank=rank, world_size=devices)
        ]
        assert sorted(torch.cat(parts).tolist()) == list(range(rows))


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"batch_size": 0}, r"ToyData.batch_size must be at least 1, got 0"),
        ({"batch_size": 1, "eval_batch_size": 0}, r"eval_batch_size must be at least 1, got 0"),
        ({"batch_size": 1, "num_workers": -1}, r"num_workers must be at least 0, got -1"),
    ],
)
def test_bad_arguments(wrong, message):
    with pytest.raises(ValueError, match=message):
        ToyData(**wrong)


def test_empty_split():
    class Empty(ToyData):
        def dataset(self, split):
            return EmptySet()

    with pytest.raises(ValueError, match=r"dataset\('valid'\) must hold at least one example"):
        Empty(batch_size=1).evaluation_loader("valid")


class EmptySet(SequenceDataset):
    def __len__(self):
        return 0

    def rows(self, indices):
        return np.empty((0, 4), dtype=np.int64), np.empty((0, 4), dtype=bool)
