"""Small labelled tasks and networks for the tests of fine-tuning."""

from pathlib import Path

import numpy as np
import torch

from genomics.finetune.labelled import Labelled, LabelledTask
from genomics.finetune.models import Pretrained
from genomics.sequence.alphabet import decode
from seqdiff.backbones import Caduceus

GC_RICH = np.array([0.15, 0.35, 0.35, 0.15])


def draw(num: int, seed: int, *, shuffle: bool = False) -> Labelled:
    """Class 1 has 70% of G and C, class 0 has 30%; lengths 20..40. Labels may be shuffled."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, num)
    ids = tuple(
        rng.choice(4, int(rng.integers(20, 41)), p=GC_RICH if label else 0.5 - GC_RICH).astype(
            np.uint8
        )
        for label in labels
    )
    return Labelled(ids, rng.permutation(labels) if shuffle else labels)


def toy(*, shuffle: bool = False) -> LabelledTask:
    train, test = draw(500, 1, shuffle=shuffle), draw(300, 2, shuffle=shuffle)
    return LabelledTask("toy", ("at", "gc"), train, None, test)


def small(name: str = "small", seed: int = 0, *, valid: bool = False) -> LabelledTask:
    """A task with fewer rows, for runs whose results do not matter."""
    parts = [draw(num, seed + place) for place, num in enumerate((60, 20, 30))]
    return LabelledTask(name, ("at", "gc"), parts[0], parts[1] if valid else None, parts[2])


def flipped(data: Labelled) -> Labelled:
    return Labelled(data.ids, 1 - data.labels)


def unseen(task: LabelledTask) -> np.ndarray:
    return np.zeros(len(task.test), dtype=bool)


def network(variant: str = "ph", seed: int = 0) -> Caduceus:
    torch.manual_seed(seed)
    return Caduceus(
        8,
        1,
        num_embeddings=5,
        num_logits=4,
        complement=(3, 2, 1, 0, 4),
        variant=variant,  # pyright: ignore[reportArgumentType]
        d_state=2,
    )


def pretrained(
    name: str = "net",
    weights: str = "w",
    *,
    seeded: bool = False,
    variant: str = "ph",
    max_length: int | None = None,
    start: int = 0,
) -> Pretrained:
    """A network without a file; each seed has its own weights if ``seeded``.

    Otherwise all seeds start from those of ``start``.
    """
    strands = 2 if variant == "ps" else 1

    def build(seed: int) -> Caduceus:
        return network(variant, seed if seeded else start)

    return Pretrained(name, weights, seeded, strands, max_length, build)


def write_table(path: Path, data: Labelled) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = zip(data.ids, data.labels, strict=True)
    path.write_text("sequence,label\n" + "".join(f"{decode(ids)},{y}\n" for ids, y in rows))


def run_config(folder: Path, **backbone: object) -> dict[str, object]:
    """Write a network with initial weights to ``folder / "tiny"``."""
    rng = np.random.default_rng(0)
    (folder / "g.fa").write_text(f">c\n{decode(rng.integers(0, 4, 4000, dtype=np.uint8))}\n")
    sizes = {"d_model": 8, "n_layer": 1, "d_state": 2}
    return {
        "data": {
            "class_path": "genomics.data.FastaDataModule",
            "init_args": {"fasta": str(folder / "g.fa"), "length": 64, "batch_size": 2},
        },
        "backbone": {"class_path": "seqdiff.backbones.Caduceus", "init_args": sizes | backbone},
        "trainer": {"max_steps": 0, "accelerator": "cpu", "enable_progress_bar": False},
        "output": str(folder / "tiny"),
    }
