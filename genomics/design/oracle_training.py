"""Train oracles, and measure how well they predict beside a regression on k-mers."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from scipy.stats import rankdata
from torch import Tensor, nn

from genomics.baselines import KmerRidge
from genomics.design.oracle import (
    NOISE_LEVELS,
    Oracle,
    OracleConfig,
    Strands,
    digest_sequences,
    encode_rows,
    one_hot_rows,
    opposite_strand,
)
from genomics.design.oracle_networks import NetworkName, build_network
from genomics.finetune import masked_mse
from genomics.io import SequenceTable, canonical, hashed_fraction
from genomics.sequence import MASK_ID, encode
from seqdiff.checks import check_count, check_seed
from seqdiff.data import Split
from seqdiff.training import Advance

Part = Literal["a", "b"]
MODELS = ("oracle", "k-mer ridge", "mean")
METRICS = ("pearson", "spearman", "mse")
BATCHES = (16, 128)  # smallest and largest number of rows
LR, WEIGHT_DECAY, CLIP = 2e-3, 0.1, 1.0
SHIFT = 3  # most positions that the rows of a batch are shifted by in training
_WARMUP = 0.1
_RESAMPLES = 1000
_BLOCK = 1 << 22  # numbers of the resampled rows that are held at a time


@dataclass(frozen=True)
class OracleTraining:
    """How an oracle is trained.

    Attributes:
        network: ``conv``, a small residual convolutional network, or ``caduceus``.
        members: Number of networks.
        strands: ``one`` reads sequences as they are given; ``both`` trains on a random strand and
            averages the predictions for both.
        mask_inputs: Whether to mask a random fraction of each row in training.
        epochs: Largest number of passes of each member; the learning rate falls to 0 over them.
        patience: Passes without a better validation loss after which a member stops.
        seed: Seed of the weights, the order of rows, dropout and masks.
    """

    network: NetworkName = "conv"
    members: int = 3
    strands: Strands = "one"
    mask_inputs: bool = False
    epochs: int = 12
    patience: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: If one is out of range.
        """
        for name in ("members", "epochs", "patience"):
            check_count(f"oracle.{name}", getattr(self, name))
        check_seed("oracle.seed", self.seed)


def rows_of_part(
    table: SequenceTable, rows: Int64[np.ndarray, " R"], part: Part
) -> Int64[np.ndarray, " r"]:
    """Choose one of two disjoint halves of rows, of which another oracle is trained on the other.

    A hash of each row's group decides, or of its sequence if there are no groups, whatever the
    seed; it is the same for both strands.

    Args:
        table: The table.
        rows: Rows to divide.
        part: ``a`` or ``b``.

    Raises:
        ValueError: If a sequence or its reverse complement lies in both halves.
    """
    names = [canonical(table.sequences[row]) for row in rows]
    keys = names if table.groups is None else [table.groups[row] for row in rows]
    first = np.array([hashed_fraction(f"part {key}", 0) < 0.5 for key in keys], dtype=bool)
    common = {name for name, where in zip(names, first, strict=True) if where}
    common &= {name for name, where in zip(names, first, strict=True) if not where}
    if common:
        copies = [int(row) for row, name in zip(rows, names, strict=True) if name in common]
        raise ValueError(
            f"{table.path}: a sequence must lie in one part, on either strand, got row "
            f"{table.rows[copies[0]]} again in another group, and {len(common):,} such sequences; "
            "give copies the same group"
        )
    return rows[first if part == "a" else ~first]


def train_oracle(
    table: SequenceTable,
    rows: Mapping[Split, Int64[np.ndarray, " r"]],
    training: OracleTraining,
    *,
    source: Mapping[str, object] | None = None,
    device: torch.device | str = "cpu",
    progress: Advance | None = None,
) -> Oracle:
    """Train an ensemble, and fit the regression that it is compared with.

    All members see the same rows and differ in the seed of their weights, the order of rows and
    dropout. Bootstraps are not drawn: they leave out a third of the distinct rows, which costs
    accuracy, and random initial weights alone make members that differ enough (Lakshminarayanan,
    Pritzel and Blundell 2017, arXiv:1612.01474, section 2.4). The rows of each batch are shifted by
    up to 3 positions, which lowers the loss on validation.

    Args:
        table: The table; NaN is a missing value, which the loss ignores.
        rows: Rows of train and valid; others are ignored. The epoch with the lowest loss on valid
            is kept, so valid counts as seen, too.
        training: How to train.
        source: How the table was read and split, which the oracle records.
        device: Device of the networks.
        progress: Called with the number of rows after each step; a member that stops early counts
            the rows that it leaves out.

    Raises:
        ValueError: If train or valid has no row, a value has fewer than two different known values
            in either, or training diverges.
    """
    learned, held = _parts(table, rows)
    length = max(len(table.sequences[row]) for row in np.concatenate((learned, held)))
    values = table.values[learned]
    mean, std = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
    data = _Data(table, learned, length, mean, std, device)
    valid = _Data(table, held, length, mean, std, device)
    if training.mask_inputs:
        valid.mask(_generator(training.seed, 0))
    fits: list[_Fit] = []
    networks: list[nn.Module] = []
    sizes: dict[str, int] = {}
    for number in range(training.members):
        seed = int(np.random.SeedSequence([training.seed, number]).generate_state(1)[0])
        with torch.random.fork_rng(devices=_cuda(device)):
            torch.manual_seed(seed)
            network = build_network(training.network, len(table.columns), length)
            sizes = network.options
            fits.append(_fit_member(network.to(device), data, valid, training, seed, progress))
        networks.append(network)
    seen = digest_sequences([table.sequences[row] for row in np.concatenate((learned, held))])
    ids = [[encode(table.sequences[row]) for row in part] for part in (learned, held)]
    ridge = KmerRidge.fit(ids[0], table.values[learned], ids[1], table.values[held])
    config = OracleConfig(
        columns=table.columns,
        length=length,
        network=training.network,
        members=training.members,
        strands=training.strands,
        mask_inputs=training.mask_inputs,
        num_seen=len(seen),
        source={
            **(source or {}),
            "num_train": len(learned),
            "num_valid": len(held),
            "sha256": hashlib.sha256(seen.astype("<i8").tobytes()).hexdigest(),
        },
        fit={
            "epochs": training.epochs,
            "patience": training.patience,
            "seed": training.seed,
            "members": [asdict(fit) for fit in fits],
            "ridge_alpha": list(ridge.alphas),
        },
        **sizes,
    )
    with torch.random.fork_rng(devices=[]):
        oracle = Oracle(config).to(device)
    oracle.members = nn.ModuleList(networks)
    oracle.mean.copy_(torch.from_numpy(mean))
    oracle.std.copy_(torch.from_numpy(std))
    oracle.ridge_weight.copy_(torch.from_numpy(ridge.weight))
    oracle.ridge_intercept.copy_(torch.from_numpy(ridge.intercept))
    oracle.seen.copy_(torch.from_numpy(seen))
    oracle.eval().requires_grad_(False)
    oracle.residual_sd.copy_(_residual_sd(oracle, table, held, training.seed))
    return oracle


def _parts(
    table: SequenceTable, rows: Mapping[Split, Int64[np.ndarray, " r"]]
) -> tuple[Int64[np.ndarray, " t"], Int64[np.ndarray, " v"]]:
    """Return the rows for training and validation.

    Raises:
        ValueError: If a part is empty, or a value does not vary in it.
    """
    found = [rows.get(split, np.empty(0, dtype=np.int64)) for split in ("train", "valid")]
    for split, part in zip(("train", "valid"), found, strict=True):
        if not len(part):
            raise ValueError(
                f"{table.path}: the {split} split must hold a row, got none of {len(table):,}; "
                "change --split, or add rows"
            )
        for place, column in enumerate(table.columns):
            known = np.unique(table.values[part, place])
            if len(known[~np.isnan(known)]) < 2:
                raise ValueError(
                    f"{table.path}: {column} must have two different values in the {split} split, "
                    f"got fewer in {len(part):,} rows; drop it from --signals, or add rows"
                )
    return found[0], found[1]


class _Data:
    """Encoded rows with standardised values."""

    def __init__(
        self,
        table: SequenceTable,
        rows: Int64[np.ndarray, " n"],
        length: int,
        mean: Float64[np.ndarray, " S"],
        std: Float64[np.ndarray, " S"],
        device: torch.device | str,
    ) -> None:
        ids, padding = encode_rows(str(table.path), [table.sequences[r] for r in rows], length)
        self.ids = torch.from_numpy(ids).to(torch.uint8)
        self.padding = torch.from_numpy(padding)
        self.values = torch.from_numpy((table.values[rows] - mean) / std).float()
        self.device = device

    def __len__(self) -> int:
        return len(self.ids)

    def mask(self, generator: torch.Generator) -> None:
        """Mask a random fraction of each row for good."""
        fractions = torch.rand(len(self), 1, generator=generator)
        draws = torch.rand(self.ids.shape, generator=generator)
        self.ids = self.ids.masked_fill(draws < fractions, MASK_ID)

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return one-hot channels, padding and values."""
        one_hot = one_hot_rows(self.ids[rows].long())
        return tuple(  # pyright: ignore[reportReturnType]
            part.to(self.device) for part in (one_hot, self.padding[rows], self.values[rows])
        )


@dataclass(frozen=True)
class _Fit:
    """How a member was trained.

    Attributes:
        epoch: The epoch that was kept, counted from 1.
        loss: Its loss on validation, in squared standard deviations.
        losses: The loss on validation after each epoch.
    """

    epoch: int
    loss: float
    losses: list[float]


def _fit_member(
    network: nn.Module,
    data: _Data,
    valid: _Data,
    training: OracleTraining,
    seed: int,
    progress: Advance | None,
) -> _Fit:
    """Train a network and leave it with the weights of its best epoch.

    Raises:
        ValueError: If the loss on validation is no longer finite.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    size = choose_batch(len(data))
    steps = math.ceil(len(data) / size) * training.epochs
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step / steps))
    best, losses = copy.deepcopy(network.state_dict()), []
    for epoch in range(training.epochs):
        network.train()
        for rows in torch.randperm(len(data), generator=generator).split(size):
            if len(rows) == 1 and len(data) > 1:
                continue  # batch norm needs two rows
            one_hot, padding, values = data.batch(rows)
            one_hot = _augment(one_hot, padding, training, generator)
            loss = masked_mse(network(one_hot, padding), values)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            if progress is not None:
                progress(len(rows))
        losses.append(_validate(network, valid, training.strands))
        if not math.isfinite(losses[-1]):
            raise ValueError(
                f"oracle must have a finite loss on validation, got {losses[-1]} after epoch "
                f"{epoch + 1}; check the values for outliers, or set --clip"
            )
        if losses[-1] == min(losses):
            best = copy.deepcopy(network.state_dict())
        if epoch - int(np.argmin(losses)) >= training.patience:
            if progress is not None:
                progress((training.epochs - epoch - 1) * len(data))
            break
    network.load_state_dict(best)
    return _Fit(int(np.argmin(losses)) + 1, min(losses), losses)


def choose_batch(num_rows: int) -> int:
    """Return the rows of a batch: a power of two with at least 64 steps a pass, in ``BATCHES``."""
    smallest, largest = BATCHES
    return min(largest, max(smallest, 2 ** int(math.log2(max(1, num_rows // 64)))))


def _rate(done: float) -> float:
    """Return the factor of the learning rate: a linear warm-up, then half a cosine."""
    if done < _WARMUP:
        return (done + 1e-3) / _WARMUP
    return 0.5 * (1 + math.cos(math.pi * (done - _WARMUP) / (1 - _WARMUP)))


def _augment(
    one_hot: Tensor, padding: Tensor, training: OracleTraining, generator: torch.Generator
) -> Tensor:
    """Shift rows at random, choose strands, and mask positions, as the training says."""
    count, length = padding.shape
    shift = int(torch.randint(-SHIFT, SHIFT + 1, (1,), generator=generator))
    one_hot = nn.functional.pad(one_hot, (shift, -shift)) * ~padding[:, None]
    if training.strands == "both":
        turned = (torch.rand(count, generator=generator) < 0.5).to(one_hot.device)
        other = opposite_strand(one_hot, padding)
        one_hot = torch.where(turned[:, None, None], other, one_hot)
    if training.mask_inputs:
        fractions = torch.rand(count, 1, generator=generator)
        kept = torch.rand(count, length, generator=generator) >= fractions
        one_hot = one_hot * kept[:, None].to(one_hot)
    return one_hot


@torch.no_grad()
def _validate(network: nn.Module, valid: _Data, strands: Strands) -> float:
    """Return the loss on validation, of predictions as the oracle makes them."""
    network.eval()
    total, known = 0.0, 0
    for rows in torch.arange(len(valid)).split(256):
        one_hot, padding, values = valid.batch(rows)
        found = network(one_hot, padding)
        if strands == "both":
            found = (found + network(opposite_strand(one_hot, padding), padding)) / 2
        count = int((~values.isnan()).sum())
        total += float(masked_mse(found, values)) * count
        known += count
    return total / known


def _generator(seed: int, number: int) -> torch.Generator:
    state = int(np.random.SeedSequence([seed, number, 1]).generate_state(1)[0])
    return torch.Generator().manual_seed(state)


def _cuda(device: torch.device | str) -> list[torch.device]:
    device = torch.device(device)
    return [device] if device.type == "cuda" else []


@torch.no_grad()
def _residual_sd(
    oracle: Oracle, table: SequenceTable, rows: Int64[np.ndarray, " n"], seed: int
) -> Float64[Tensor, "levels S"]:
    """Measure the residuals on rows with masked positions, by the fraction of unknown positions.

    Fractions are rounded to a tenth; one that no row has is interpolated.
    """
    config = oracle.config
    ids, padding = encode_rows(str(table.path), [table.sequences[r] for r in rows], config.length)
    values, absent = table.values[rows], torch.from_numpy(padding)
    real = (~absent).sum(dim=1, keepdim=True)
    levels = NOISE_LEVELS if config.mask_inputs else 1
    generator = _generator(seed, 1)
    squares = np.zeros((levels, len(config.columns)))
    counts = np.zeros_like(squares)
    for level in range(levels):
        fraction = level / (NOISE_LEVELS - 1)
        draws = torch.rand(ids.shape, generator=generator).masked_fill(absent, 2.0)
        rank = draws.argsort(dim=1).argsort(dim=1)
        noisy = torch.from_numpy(ids).masked_fill(rank < (fraction * real).round(), MASK_ID)
        for chosen in torch.arange(len(rows)).split(256):
            one_hot = one_hot_rows(noisy[chosen]).to(oracle.mean.device)
            found = oracle(one_hot, absent[chosen].to(oracle.mean.device)).double().cpu().numpy()
            error = found - values[chosen.numpy()]
            unknown = 1 - one_hot.sum(dim=(1, 2)).cpu().numpy() / config.length
            where = np.rint(unknown * (NOISE_LEVELS - 1)).astype(int) if levels > 1 else 0 * chosen
            np.add.at(squares, np.asarray(where), np.nan_to_num(error) ** 2)
            np.add.at(counts, np.asarray(where), ~np.isnan(error))
    found = np.empty_like(squares)
    for place in range(squares.shape[1]):
        full = counts[:, place] > 0
        sd = np.sqrt(squares[full, place] / counts[full, place])
        found[:, place] = np.interp(np.arange(levels), np.flatnonzero(full), sd)
    return torch.from_numpy(found)


class Interval(NamedTuple):
    """A metric with its 95% interval; an undefined metric has three ``None``.

    Attributes:
        value: On all rows.
        low: Lower end.
        high: Upper end.
    """

    value: float | None
    low: float | None
    high: float | None


def measure_predictions(
    truth: Float64[np.ndarray, " n"],
    predictions: Mapping[str, Float64[np.ndarray, " n"]],
    seed: int = 0,
) -> dict[str, dict[str, Interval]]:
    """Compute Pearson and Spearman correlations and mean squared errors, with intervals.

    The intervals are percentiles of 1,000 bootstrap resamples of the rows, the same for all models,
    which is why they are not left to ``scipy.stats.bootstrap``. A correlation with a constant is
    undefined.

    Args:
        truth: Measured values.
        predictions: Predicted values of each model.
        seed: Seed of the resamples.

    Returns:
        For each model the intervals by metric: ``pearson``, ``spearman`` and ``mse``.

    Raises:
        ValueError: If there are fewer than two rows.
    """
    if len(truth) < 2:
        raise ValueError(
            f"measure_predictions.truth must have at least 2 values, got {len(truth)}; give more "
            "rows"
        )
    everything = np.arange(len(truth))[None]
    generator = np.random.default_rng(seed)
    drawn: dict[str, list[Float64[np.ndarray, "3 b"]]] = {name: [] for name in predictions}
    block = max(1, _BLOCK // len(truth))
    for first in range(0, _RESAMPLES, block):
        size = (min(block, _RESAMPLES - first), len(truth))
        rows = generator.integers(0, len(truth), size)
        for name, found in predictions.items():
            drawn[name].append(_metrics(truth[rows], found[rows]))
    result = {}
    for name, found in predictions.items():
        whole = _metrics(truth[everything], found[everything])[:, 0]
        resampled = np.concatenate(drawn[name], axis=1)
        result[name] = {
            metric: _interval(whole[place], resampled[place])
            for place, metric in enumerate(METRICS)
        }
    return result


def _interval(value: float, resampled: Float64[np.ndarray, " b"]) -> Interval:
    """Return a metric with its interval; resamples in which it is undefined do not count."""
    defined = resampled[~np.isnan(resampled)]
    if math.isnan(value) or not len(defined):
        return Interval(None, None, None)
    low, high = np.percentile(defined, (2.5, 97.5)).tolist()
    return Interval(float(value), low, high)


def _metrics(
    truth: Float64[np.ndarray, "b n"], found: Float64[np.ndarray, "b n"]
) -> Float64[np.ndarray, "3 b"]:
    """Compute the metrics of each row of resamples."""
    ranks = rankdata(truth, axis=1), rankdata(found, axis=1)
    return np.stack((_correlate(truth, found), _correlate(*ranks), ((truth - found) ** 2).mean(1)))


def _correlate(
    first: Float64[np.ndarray, "b n"], second: Float64[np.ndarray, "b n"]
) -> Float64[np.ndarray, " b"]:
    """Compute the correlation of each row; NaN if one is constant."""
    constant = (first == first[:, :1]).all(1) | (second == second[:, :1]).all(1)
    first = first - first.mean(axis=1, keepdims=True)
    second = second - second.mean(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (first * second).sum(1) / np.sqrt((first**2).sum(1) * (second**2).sum(1))
    return np.where(constant, np.nan, found)


@dataclass(frozen=True)
class OracleEvaluation:
    """How well an oracle predicts some rows.

    Attributes:
        num_rows: Number of rows.
        num_seen: Number of rows whose sequence the oracle was trained on, on either strand.
        known: Number of known values by signal.
        metrics: The intervals by signal, model and metric; models are the oracle, the k-mer ridge
            regression, and the mean of training.
    """

    num_rows: int
    num_seen: int
    known: dict[str, int]
    metrics: dict[str, dict[str, dict[str, Interval]]]


def evaluate_oracle(
    oracle: Oracle,
    sequences: Sequence[str],
    values: Float64[np.ndarray, "N S"],
    seed: int = 0,
) -> OracleEvaluation:
    """Compare predictions with measured values, beside those of simple models.

    Args:
        oracle: The oracle.
        sequences: The sequences.
        values: Measured values of its columns; NaN where one is missing.
        seed: Seed of the intervals.

    Raises:
        ValueError: If a value has fewer than two known rows, or a sequence does not fit.
    """
    for place, column in enumerate(oracle.columns):
        count = int((~np.isnan(values[:, place])).sum())
        if count < 2:
            raise ValueError(
                f"evaluate_oracle.values must hold two known values of {column}, got {count} in "
                f"{len(values):,} rows; give more rows"
            )
    found = oracle.predict(sequences)
    simple = oracle.predict_kmers(sequences)
    digests = np.array([digest_sequences([sequence])[0] for sequence in sequences])
    seen = int(np.isin(digests, oracle.seen.cpu().numpy()).sum())
    counts, metrics = {}, {}
    for place, column in enumerate(oracle.columns):
        known: Bool[np.ndarray, " N"] = ~np.isnan(values[:, place])
        constant = np.full(int(known.sum()), float(oracle.mean[place]))
        predictions = (found[known, place], simple[known, place], constant)
        counts[column] = int(known.sum())
        metrics[column] = measure_predictions(
            values[known, place], dict(zip(MODELS, predictions, strict=True)), seed
        )
    return OracleEvaluation(len(sequences), seen, counts, metrics)
