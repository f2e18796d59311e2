"""The published protocol: settings, accuracies, and the choices of ``seqdiff finetune``.

Sources: Schiff et al. 2024, arXiv:2403.03234, appendix, for the settings and for CNN, HyenaDNA and
Caduceus; Sahoo et al. 2024, arXiv:2406.07524, for the other accuracies. All accuracies are those of
the official test sets. The command line imports this module to build its options, so the module
imports nothing slow.
"""

from __future__ import annotations

from typing import Literal, get_args

LRS = (1e-3, 2e-3)
BATCH_SIZES = (128, 256)
EPOCHS = 10
SEEDS = 5
WEIGHT_DECAY = 0.1
WARMUP = 0.01  # fraction of the steps

DEFAULT_LENGTH = 1024  # most bases that are read if no length is published

Strategy = Literal["full", "probe"]
Conjoin = Literal["none", "test", "train"]
Pooling = Literal["real", "padded"]
Baseline = Literal["majority", "length", "kmer", "cnn"]
BASELINES: tuple[Baseline, ...] = get_args(Baseline)

COLUMNS = (
    "CNN",
    "HyenaDNA",
    "Caduceus-Ph",
    "Caduceus-PS",
    "Mamba AR",
    "Caduceus MLM",
    "Plaid",
    "SEDD",
    "MDLM",
)

_ROWS = {
    "dummy_mouse_enhancers_ensembl": (
        1024,
        (0.715, 0.780, 0.754, 0.793, 0.763, 0.810, 0.745, 0.784, 0.795),
    ),
    "demo_coding_vs_intergenomic_seqs": (
        200,
        (0.892, 0.904, 0.915, 0.910, 0.897, 0.913, 0.908, 0.913, 0.913),
    ),
    "demo_human_or_worm": (
        200,
        (0.942, 0.964, 0.973, 0.968, 0.967, 0.970, 0.971, 0.970, 0.970),
    ),
    "human_enhancers_cohn": (
        500,
        (0.702, 0.729, 0.747, 0.745, 0.734, 0.737, 0.743, 0.746, 0.743),
    ),
    "human_enhancers_ensembl": (
        512,
        (0.744, 0.849, 0.893, 0.900, 0.856, 0.907, 0.885, 0.905, 0.899),
    ),
    "human_ensembl_regulatory": (
        512,
        (0.872, 0.869, 0.872, 0.873, 0.861, 0.874, 0.868, 0.828, 0.868),
    ),
    "human_nontata_promoters": (
        251,
        (0.861, 0.944, 0.946, 0.945, 0.926, 0.935, 0.935, 0.935, 0.940),
    ),
    "human_ocr_ensembl": (
        512,
        (0.698, 0.783, 0.828, 0.818, 0.806, 0.821, 0.820, 0.816, 0.823),
    ),
}


def published(task: str) -> dict[str, float]:
    """Return the published accuracies of a data set by method; empty for other data sets.

    Args:
        task: A name that contains the name of the data set, such as
            ``test_human_nontata_promoters``.
    """
    found = _find(task)
    return {} if found is None else dict(zip(COLUMNS, found[1], strict=True))


def published_length(task: str) -> int | None:
    """Return how many bases of each sequence the published networks read; ``None`` if unknown.

    Args:
        task: See ``published``.
    """
    found = _find(task)
    return None if found is None else found[0]


def _find(task: str) -> tuple[int, tuple[float, ...]] | None:
    return next((row for name, row in _ROWS.items() if name in task), None)
