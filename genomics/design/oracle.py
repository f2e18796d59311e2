"""Oracles: ensembles that predict measured values, their files, and what they may judge."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, overload

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from safetensors.torch import save
from torch import Tensor, nn

from genomics.baselines import NUM_FEATURES, KmerRidge
from genomics.design.oracle_networks import NetworkName, build_network
from genomics.io import canonical
from genomics.sequence import (
    MASK_ID,
    OneHotOracle,
    OracleClassifier,
    OracleReward,
    encode,
)
from seqdiff.denoiser import Denoiser
from seqdiff.files import parse_json, write_bytes
from seqdiff.samplers import BlockClassifierBased, ExactClassifierBased, SMCSampler
from seqdiff.training import check_weights, read_weights, weights_digest

ORACLE_NAME, WEIGHTS_NAME = "oracle.json", "model.safetensors"
# Residuals are stored for these fractions of unknown positions: 0, 0.1, ..., 1.
NOISE_LEVELS = 11
Strands = Literal["one", "both"]
_FORMAT = 1


@dataclass(frozen=True)
class OracleConfig:
    """What an oracle is and what it was trained on.

    Attributes:
        columns: Names of the values.
        length: Positions of a row; shorter sequences are padded at the end.
        network: ``conv`` or ``caduceus``.
        width: Channels of the network.
        depth: Blocks of the network.
        members: Number of networks.
        strands: Whether each network also reads the other strand, and averages.
        mask_inputs: Whether the networks were trained on partly masked rows, which is what
            guidance by a classifier shows them.
        num_seen: Number of different sequences, on either strand, that training or the choice of
            the best epoch used.
        source: The table, and how its rows were read and split.
        fit: How training went.
    """

    columns: tuple[str, ...]
    length: int
    network: NetworkName
    width: int
    depth: int
    members: int
    strands: Strands
    mask_inputs: bool
    num_seen: int
    source: dict[str, object]
    fit: dict[str, object]


def encode_rows(
    owner: str, sequences: Sequence[str], length: int
) -> tuple[Int64[np.ndarray, "N L"], Bool[np.ndarray, "N L"]]:
    """Encode sequences as rows of one length.

    Args:
        owner: Name of the argument, for the message.
        sequences: DNA with IUPAC codes.
        length: Positions of a row.

    Returns:
        Ids, and the padding at the end of shorter rows.

    Raises:
        ValueError: If a sequence is empty, longer, or no DNA.
    """
    ids = np.full((len(sequences), length), MASK_ID, dtype=np.int64)
    padding = np.ones((len(sequences), length), dtype=bool)
    for number, sequence in enumerate(sequences):
        if not 1 <= len(sequence) <= length:
            raise ValueError(
                f"{owner} must have 1 to {length} bases each, as those of training, got "
                f"{len(sequence)} in number {number}; shorten it or leave it out"
            )
        ids[number, : len(sequence)] = encode(sequence, where=f"{owner}, number {number}")
        padding[number, : len(sequence)] = False
    return ids, padding


def digest_sequences(sequences: Sequence[str]) -> Int64[np.ndarray, " n"]:
    """Hash sequences to 64 bits each; both strands have the same digest.

    Returns:
        The different digests, sorted.
    """
    digests = [
        hashlib.blake2b(canonical(sequence).encode(), digest_size=8).digest()
        for sequence in sequences
    ]
    return np.unique(np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64))


class Oracle(nn.Module):
    """An ensemble of networks that predicts the measured values of sequences.

    The prediction is the mean of the members', in the units of the table. It is differentiable with
    respect to one-hot channels, and the module works as the network of ``OneHotOracle``.

    Beside the networks, an oracle holds what it takes to compare and to use it: a ridge regression
    on k-mers and the mean, fitted to the same rows; digests of these rows; and the standard
    deviation of its residuals on validation.

    Args:
        config: What it is.
    """

    mean: Tensor
    std: Tensor
    residual_sd: Tensor
    ridge_weight: Tensor
    ridge_intercept: Tensor
    seen: Tensor

    def __init__(self, config: OracleConfig) -> None:
        """Build the networks with weights of torch's generator."""
        super().__init__()
        self.config = config
        count = len(config.columns)
        sizes = {"width": config.width, "depth": config.depth}
        self.members = nn.ModuleList(
            build_network(config.network, count, config.length, **sizes)
            for _ in range(config.members)
        )
        levels = NOISE_LEVELS if config.mask_inputs else 1
        self.register_buffer("mean", torch.zeros(count, dtype=torch.float64))
        self.register_buffer("std", torch.ones(count, dtype=torch.float64))
        self.register_buffer("residual_sd", torch.ones(levels, count, dtype=torch.float64))
        self.register_buffer("ridge_weight", torch.zeros(count, NUM_FEATURES, dtype=torch.float64))
        self.register_buffer("ridge_intercept", torch.zeros(count, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(config.num_seen, dtype=torch.int64))
        self.eval()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the values."""
        return self.config.columns

    @property
    def digest(self) -> str:
        """A digest of all weights and of the options that change predictions."""
        weights = {name: value.cpu() for name, value in self.state_dict().items()}
        options = f"{self.config.network} {self.config.strands} {self.columns}"
        return hashlib.sha256(f"{weights_digest(weights)} {options}".encode()).hexdigest()

    def column(self, signal: str) -> int:
        """Return the number of a value.

        Raises:
            ValueError: If the oracle does not predict it.
        """
        if signal not in self.columns:
            raise ValueError(
                f"Oracle.signal must be one of {', '.join(self.columns)}, got {signal!r}; choose "
                "one, or train an oracle on that column"
            )
        return self.columns.index(signal)

    def member(
        self, number: int, one_hot: Float[Tensor, "B 4 L"], padding: Bool[Tensor, "B L"]
    ) -> Float[Tensor, "B S"]:
        """Predict by one member, standardised.

        Args:
            number: Number of the member.
            one_hot: Rows of ``config.length`` positions.
            padding: True at padding, which comes last.
        """
        found = self.members[number](one_hot, padding)
        if self.config.strands == "both":
            other = opposite_strand(one_hot, padding)
            found = (found + self.members[number](other, padding)) / 2
        return found

    def each(
        self, one_hot: Float[Tensor, "B 4 l"], padding: Bool[Tensor, "B l"] | None = None
    ) -> Float[Tensor, "M B S"]:
        """Predict by each member, in the units of the table.

        Args:
            one_hot: Bases, with zeros at unknown ones. Rows shorter than those of training are
                padded at the end.
            padding: True at padding, which comes last; ``None`` without padding.

        Raises:
            ValueError: If rows are longer than those of training.
        """
        size, longest = one_hot.shape[-1], self.config.length
        if size > longest:
            raise ValueError(
                f"Oracle.one_hot must have at most {longest} positions, as the rows of training, "
                f"got {size}; shorten the rows"
            )
        if padding is None:
            padding = torch.zeros_like(one_hot[:, 0], dtype=torch.bool)
        one_hot = nn.functional.pad(one_hot.to(torch.float32), (0, longest - size))
        padding = nn.functional.pad(padding, (0, longest - size), value=True)
        found = [self.member(number, one_hot, padding) for number in range(len(self.members))]
        return torch.stack(found) * self.std.float() + self.mean.float()

    def forward(
        self, one_hot: Float[Tensor, "B 4 l"], padding: Bool[Tensor, "B l"] | None = None
    ) -> Float[Tensor, "B S"]:
        """Predict the values, in the units of the table; see ``each``."""
        return self.each(one_hot, padding).mean(dim=0)

    @overload
    def predict(
        self,
        sequences: Sequence[str],
        *,
        members: Literal[False] = False,
        batch_size: int = 256,
    ) -> Float64[np.ndarray, "N S"]: ...

    @overload
    def predict(
        self, sequences: Sequence[str], *, members: Literal[True], batch_size: int = 256
    ) -> Float64[np.ndarray, "M N S"]: ...

    @torch.no_grad()
    def predict(
        self, sequences: Sequence[str], *, members: bool = False, batch_size: int = 256
    ) -> Float64[np.ndarray, "*M N S"]:
        """Predict the values of sequences, in the units of the table.

        Args:
            sequences: DNA with IUPAC codes, of at most ``config.length`` bases.
            members: Return the predictions of each member, whose spread says where they disagree.
            batch_size: Rows per network call.

        Raises:
            FloatingPointError: If a prediction is NaN or infinite.
            ValueError: If a sequence is empty, longer than those of training, or no DNA.
        """
        ids, padding = encode_rows("Oracle.sequences", sequences, self.config.length)
        found = np.empty((len(self.members), len(ids), len(self.columns)))
        device = self.mean.device
        for first in range(0, len(ids), batch_size):
            rows = slice(first, first + batch_size)
            one_hot = one_hot_rows(torch.from_numpy(ids[rows]).to(device))
            masks = torch.from_numpy(padding[rows]).to(device)
            found[:, rows] = self.each(one_hot, masks).cpu().numpy()
        if not np.isfinite(found).all():
            raise FloatingPointError(
                "Oracle must predict finite values, got NaN or inf; its weights are damaged or too "
                "large: train it again"
            )
        return found if members else found.mean(axis=0)

    def predict_kmers(self, sequences: Sequence[str]) -> Float64[np.ndarray, "N S"]:
        """Predict by the ridge regression on k-mers that was fitted to the same rows."""
        weight, intercept = self.ridge_weight.cpu().numpy(), self.ridge_intercept.cpu().numpy()
        return KmerRidge((), weight, intercept).predict([encode(text) for text in sequences])

    def reward(
        self, signal: str, target: float | None = None, scale: float | None = None
    ) -> OracleReward:
        """Make a reward for ``seqdiff.samplers.SMCSampler``.

        Args:
            signal: Name of the value.
            target: Wanted value; ``None`` rewards high predictions instead, by the prediction.
            scale: The reward of a target is ``-(prediction - target)^2 / (2 scale^2)``; ``None``
                takes the standard deviation of the residuals on validation.

        Raises:
            ValueError: If the oracle does not predict the value, or the scale is not positive.
        """
        index = self.column(signal)
        if target is None:
            return OracleReward(OneHotOracle(self, index))
        if scale is None:
            scale = float(self.residual_sd[0, index])
        if not 0 < scale < math.inf:
            raise ValueError(
                f"Oracle.reward.scale must be above 0 and finite, got {scale}; leave it out to use "
                "the oracle's error"
            )
        return OracleReward(OneHotOracle(_TargetReward(self, index, target, scale)))

    def likelihood(self, signal: str, target: float) -> OneHotOracle:
        """Make a network of log p(target | noisy row), for guidance by a classifier.

        The distribution is a normal one around the prediction, whose standard deviation is that of
        the residuals on validation rows with as many unknown positions. It is differentiable with
        respect to the channels.

        Args:
            signal: Name of the value.
            target: Wanted value.

        Raises:
            ValueError: If the oracle does not predict the value, or was not trained on masked rows.
        """
        index = self.column(signal)
        if not self.config.mask_inputs:
            raise ValueError(
                "Oracle.likelihood must have an oracle that was trained on masked rows, since "
                "guidance shows it partly masked ones, got one without; train it with --mask-inputs"
            )
        return OneHotOracle(_TargetLikelihood(self, index, target))

    def classifier(self, signal: str, target: float) -> OracleClassifier:
        """Make a classifier that guides to a value, for ``ExactClassifierBased``.

        See ``likelihood``, which also fits ``RelaxedOracleClassifier``.
        """
        return OracleClassifier(self.likelihood(signal, target), _same)

    def save(self, folder: str | Path) -> None:
        """Write ``oracle.json`` and ``model.safetensors`` to a folder, which is created.

        Raises:
            OSError: If a file cannot be written.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            name: value.detach().cpu().contiguous().clone()
            for name, value in self.state_dict().items()
        }
        content = {"format": _FORMAT, **asdict(self.config), "digest": self.digest}
        write_bytes(folder / WEIGHTS_NAME, save(tensors))
        write_bytes(folder / ORACLE_NAME, (json.dumps(content, indent=1) + "\n").encode())

    @classmethod
    def load(cls, folder: str | Path, device: torch.device | str = "cpu") -> Oracle:
        """Read an oracle.

        Args:
            folder: A folder that ``save`` wrote.
            device: Device of the networks.

        Raises:
            FileNotFoundError: If there is no such oracle.
            ValueError: If a file is damaged, or the two do not belong together.
        """
        path = Path(folder) / ORACLE_NAME
        if not path.is_file():
            raise FileNotFoundError(
                f"oracle must be a folder with {ORACLE_NAME}, got {folder}; train one by: seqdiff "
                "oracle train TABLE --signals COLUMN --out DIR"
            )
        config, digest = _read_config(path)
        with torch.random.fork_rng(devices=[]):
            oracle = cls(config)
        weights = read_weights(Path(folder) / WEIGHTS_NAME)
        fix = "copy both files of the folder again"
        check_weights(
            str(Path(folder) / WEIGHTS_NAME),
            oracle.state_dict(),
            weights,
            to_fit=ORACLE_NAME,
            fix=fix,
        )
        oracle.load_state_dict(weights)
        if oracle.digest != digest:
            raise ValueError(
                f"{folder}/{WEIGHTS_NAME} must have the digest of {ORACLE_NAME}, got another one; "
                f"{fix}"
            )
        return oracle.to(device).requires_grad_(False)


def _read_config(path: Path) -> tuple[OracleConfig, str]:
    """Read ``oracle.json``.

    Raises:
        ValueError: If it is not one.
    """
    try:
        content = parse_json(path.read_bytes())
        digest, version = str(content.pop("digest")), content.pop("format")
        content["columns"] = tuple(content["columns"])
        config = OracleConfig(**content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{path} must describe an oracle, got: {error}; copy it again, or train another"
        ) from error
    if version != _FORMAT:
        raise ValueError(
            f"{path} must have the format {_FORMAT}, got {version}; update seqdiff, or train it "
            "again"
        )
    return config, digest


def one_hot_rows(ids: Int64[Tensor, "B L"]) -> Float[Tensor, "B 4 L"]:
    """Convert ids ``0..4`` to channels, with zeros for unknown bases; the ids are not checked."""
    return nn.functional.one_hot(ids, MASK_ID + 1)[..., :MASK_ID].mT.float()


def opposite_strand(
    one_hot: Float[Tensor, "B 4 L"], padding: Bool[Tensor, "B L"]
) -> Float[Tensor, "B 4 L"]:
    """Read rows on the other strand: real positions backwards and complemented, padding in place.

    Args:
        one_hot: Bases in the order A, C, G, T.
        padding: True at padding, which comes last.
    """
    place = torch.arange(padding.shape[1], device=padding.device)
    last = (~padding).sum(dim=1, keepdim=True) - 1
    order = torch.where(padding, place, last - place)
    return one_hot.flip(1).gather(2, order[:, None].expand_as(one_hot))


@dataclass(frozen=True, kw_only=True)
class OracleGoal:
    """What an oracle guides a sampler to: values close to targets, or one value as high as it gets.

    Scores are in nats. The score of targets is the sum of their normal log-densities around the
    predictions, with the standard deviation of the oracle's residuals at the fraction of unknown
    positions; that of a finished row leaves out a constant. The score of a value to maximise is the
    prediction in units of that standard deviation for finished rows.

    Attributes:
        oracle: The oracle.
        targets: Wanted values by name; those that the oracle does not predict are left out.
        maximise: Name of the value to maximise instead.

    Raises:
        ValueError: If the oracle predicts no wanted value, or not the one to maximise.
    """

    oracle: Oracle
    targets: Mapping[str, float] = field(default_factory=dict)
    maximise: str | None = None

    def __post_init__(self) -> None:
        """Check the names."""
        known = ", ".join(self.oracle.columns)
        if self.maximise is not None and self.maximise not in self.oracle.columns:
            raise ValueError(
                f"design.maximise must be one of the guide's values, {known}, got "
                f"{self.maximise!r}; correct the name, or train the guide on that column"
            )
        if self.maximise is None and not self._targets:
            wanted = ", ".join(self.targets) or "none"
            raise ValueError(
                f"design.guide must predict a wanted value, got an oracle of {known} and wanted "
                f"values of {wanted}; give one by --signal, in every row of --signal-file, or by "
                "--maximise"
            )

    @property
    def _targets(self) -> dict[str, float]:
        return {name: goal for name, goal in self.targets.items() if name in self.oracle.columns}

    def reward(self, tokens: Int64[Tensor, "n L"]) -> Float[Tensor, " n"]:
        """Score finished rows of ids."""
        if self.maximise is not None:
            sd = self.oracle.residual_sd[0, self.oracle.column(self.maximise)].float()
            return self.oracle.reward(self.maximise)(tokens) / sd
        parts = [self.oracle.reward(*item)(tokens) for item in self._targets.items()]
        return torch.stack(parts).sum(dim=0)

    def log_wanted(
        self,
        tokens: Int64[Tensor, "n L"],
        t: Float[Tensor, " n"] | None = None,
        padding: Bool[Tensor, "n L"] | None = None,
    ) -> Float[Tensor, " n"]:
        """Score rows with unknown positions, as a ``seqdiff.samplers.Classifier``."""
        if self.maximise is not None:
            return self.reward(tokens)
        parts = [
            self.oracle.classifier(*item)(tokens, t, padding) for item in self._targets.items()
        ]
        return torch.stack(parts).sum(dim=0)

    def sampler(self, num_particles: int = 8) -> SMCSampler:
        """Make a sampler of whole rows or blocks, whose distribution is tilted by the score.

        The score is divided by a temperature of 0.1, so that designs are closer to what is wanted
        than the oracle's error. An oracle that was trained on masked rows scores unfinished rows;
        another one drafts.
        """
        masked = self.oracle.config.mask_inputs
        return SMCSampler(
            reward=self.reward,
            reward_temperature=0.1,
            num_particles=num_particles,
            unfinished_reward=self.log_wanted if masked else None,
        )

    def steer(self, denoiser: Denoiser, length: int) -> Denoiser:
        """Guide a model of whole rows or blocks by the score of unfinished rows.

        Args:
            denoiser: The model.
            length: Positions of a row.

        Raises:
            ValueError: If the oracle was not trained on masked rows.
        """
        check_masked(self.oracle)
        if denoiser.context == "block":
            return BlockClassifierBased(denoiser, self.log_wanted, length)
        return ExactClassifierBased(denoiser, self.log_wanted)


class _TargetReward(nn.Module):
    """How close the prediction comes to a target, with the shape of a normal log-density."""

    def __init__(self, oracle: Oracle, index: int, target: float, scale: float) -> None:
        super().__init__()
        self.oracle, self.index, self.target, self.scale = oracle, index, target, scale

    def forward(self, one_hot: Float[Tensor, "B 4 L"]) -> Float[Tensor, " B"]:
        found = self.oracle(one_hot)[:, self.index]
        return -((found - self.target) ** 2) / (2 * self.scale**2)


class _TargetLikelihood(nn.Module):
    """The normal log-density of a target, given a row with unknown positions."""

    def __init__(self, oracle: Oracle, index: int, target: float) -> None:
        super().__init__()
        self.oracle, self.index, self.target = oracle, index, target

    def forward(self, one_hot: Float[Tensor, "B 4 L"]) -> Float[Tensor, " B"]:
        found = self.oracle(one_hot)[:, self.index]
        unknown = 1 - one_hot.sum(dim=(1, 2)) / self.oracle.config.length
        level = (unknown * (NOISE_LEVELS - 1)).clamp(0, NOISE_LEVELS - 1)
        below = level.floor().long().clamp(max=NOISE_LEVELS - 2)
        table = self.oracle.residual_sd[:, self.index].to(found)
        sd = table[below] + (level - below) * (table[below + 1] - table[below])
        error = (self.target - found) / sd
        return -(error**2) / 2 - sd.log() - math.log(2 * math.pi) / 2


def _same(x: Shaped[Tensor, " B"]) -> Shaped[Tensor, " B"]:
    return x


@dataclass(frozen=True)
class CommandOracle:
    """An external command that predicts one value.

    The command reads sequences as FASTA on standard input, and writes a number a line.

    Attributes:
        command: The command with its arguments; it is run without a shell.
        signal: Name of the value.
    """

    command: str
    signal: str = "value"

    @property
    def columns(self) -> tuple[str, ...]:
        """The name of the value."""
        return (self.signal,)

    def predict(self, sequences: Sequence[str]) -> Float64[np.ndarray, "N 1"]:
        """Run the command.

        Raises:
            ValueError: If the command cannot be run, fails, or does not write one finite number
                for each sequence.
        """
        owner = f"oracle command {self.command!r}"
        text = "".join(f">{number}\n{seq}\n" for number, seq in enumerate(sequences))
        try:
            done = subprocess.run(
                shlex.split(self.command), input=text, capture_output=True, text=True, check=False
            )
        except (OSError, ValueError, IndexError) as error:
            said = error.strerror if isinstance(error, OSError) else error
            raise ValueError(
                f"{owner} must be a command that can be run, got: {said}; check its spelling"
            ) from error
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["nothing on standard error"])[-1]
            raise ValueError(
                f"{owner} must end with exit code 0, got {done.returncode} and: {last}; run it by "
                "hand on a FASTA file"
            )
        lines = done.stdout.split("\n")
        lines = lines[:-1] if lines[-1] == "" else lines
        if len(lines) != len(sequences):
            raise ValueError(
                f"{owner} must write one line for each of {len(sequences):,} sequences, got "
                f"{len(lines):,}; write nothing else to standard output"
            )
        found = np.empty((len(lines), 1))
        for number, line in enumerate(lines):
            try:
                found[number] = float(line)
            except ValueError:
                found[number] = math.nan
            if not np.isfinite(found[number, 0]):
                raise ValueError(
                    f"{owner} must write a finite number a line, got {line[:40]!r} in line "
                    f"{number + 1}; write nothing else to standard output"
                )
        return found


def check_masked(oracle: Oracle) -> None:
    """Check that an oracle was trained on masked rows, which guidance by a classifier shows it.

    Raises:
        ValueError: If it was not.
    """
    if not oracle.config.mask_inputs:
        raise ValueError(
            "design.guide must be an oracle that was trained on masked rows for --guide-by "
            "classifier, got one without; train it with --mask-inputs, or take --guide-by smc"
        )


def shared_sequences(first: Oracle, second: Oracle) -> int:
    """Count the sequences that two oracles were both trained on, on either strand."""
    return len(np.intersect1d(first.seen.cpu().numpy(), second.seen.cpu().numpy()))


def check_judge(
    judge: Oracle | CommandOracle, guide: Oracle | CommandOracle, allow: bool = False
) -> None:
    """Check that an oracle may judge sequences that another one guided or chose.

    Sequences that were optimised for an oracle exploit its errors, so it overrates them. An oracle
    that was trained on the same sequences has many of the same errors. Of a command, only its
    spelling is known.

    Args:
        judge: The oracle that judges.
        guide: The oracle that guided or chose.
        allow: Accept any judge.

    Raises:
        ValueError: If they are the same oracle or were trained on common sequences.
    """
    if allow:
        return
    fix = "train two with --part a and --part b, or allow it with --allow-same-judge"
    if isinstance(judge, Oracle) and isinstance(guide, Oracle):
        same, shared = judge.digest == guide.digest, shared_sequences(judge, guide)
        total = judge.config.num_seen
    else:
        same, shared, total = judge == guide, 0, 0
    if same:
        raise ValueError(
            f"judge must be another oracle than the one that guided, got the same one; {fix}"
        )
    if shared:
        raise ValueError(
            "judge must be trained on other sequences than the oracle that guided, got "
            f"{shared:,} of {total:,} in common; {fix}"
        )
