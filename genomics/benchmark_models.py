"""Pretrained networks to fine-tune: from a run, from a hub folder, or the same one untrained."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from seqdiff.backbones.hub_files import CONFIG_FILE, WEIGHTS_FILE
from seqdiff.backbones.protocol import BoundedBackbone, HiddenBackbone

from .alphabet import BASES, DNATokenizer
from .published import PublishedCaduceus


@dataclass(frozen=True)
class Pretrained:
    """A network to fine-tune.

    Attributes:
        name: In tables.
        weights: A digest of what training begins with.
        strands: See ``HiddenBackbone``.
        max_length: Most bases of a row; ``None`` without a bound.
        build: Gives a copy of its own to each seed.
    """

    name: str
    weights: str
    strands: int
    max_length: int | None
    build: Callable[[int], HiddenBackbone]


def load_pretrained(path: Path, device: torch.device, *, scratch: bool) -> list[Pretrained]:
    """Load a network, and make its untrained twin if that is asked for.

    Args:
        path: Run directory, or folder of a published Caduceus.
        device: Where it goes.
        scratch: Whether to add the same network with new weights for each seed.

    Raises:
        FileNotFoundError: If it is neither.
        ValueError: If it is not one of DNA, or gives no hidden states.
    """
    if (path / CONFIG_FILE).is_file() and not (path / "run.yaml").is_file():
        found = _open_hub(path)
    else:
        found = _open_run(path)
    loaded, fresh = found
    if not isinstance(loaded, HiddenBackbone):
        raise ValueError(
            f"finetune.models must give hidden states, got {path} on {type(loaded).__name__}; "
            "use a run on one of seqdiff's own DNA networks"
        )
    pretrained = loaded.to(device)
    bound = loaded.max_length if isinstance(loaded, BoundedBackbone) else None
    digest = hashlib.sha256((path / WEIGHTS_FILE).read_bytes()).hexdigest()[:16]
    name = path.resolve().name
    models = [Pretrained(name, digest, loaded.strands, bound, lambda _: copy.deepcopy(pretrained))]
    if scratch:
        shape = hashlib.sha256(str(loaded).encode()).hexdigest()[:16]

        def build(seed: int) -> HiddenBackbone:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                made = fresh().to(device)
            assert isinstance(made, HiddenBackbone)
            return made

        models.append(
            Pretrained(f"{name} from scratch", f"new {shape}", loaded.strands, bound, build)
        )
    return models


Opened = tuple[nn.Module, Callable[[], nn.Module]]


def _open_hub(path: Path) -> Opened:
    ids, bases = len(BASES) + 1, len(BASES)
    loaded = PublishedCaduceus(str(path), num_embeddings=ids, num_logits=bases)
    shape = loaded.network.config
    return loaded, lambda: PublishedCaduceus(str(path), shape, num_embeddings=ids, num_logits=bases)


def _open_run(path: Path) -> Opened:
    from seqdiff.config import instantiate, parse_run
    from seqdiff.run import load_run

    loaded = load_run(path)
    wanted = DNATokenizer().fingerprint
    if loaded.tokenizer.fingerprint != wanted:
        raise ValueError(
            f"finetune.models must be networks of DNA, got {path}, whose tokenizer is "
            f"{loaded.tokenizer.fingerprint}; choose another run"
        )

    def fresh() -> nn.Module:
        made = instantiate(parse_run(path / "run.yaml")).backbone
        assert isinstance(made, nn.Module)
        return made

    backbone = loaded.denoiser.backbone
    assert isinstance(backbone, nn.Module)
    return backbone, fresh
