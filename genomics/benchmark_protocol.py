"""The published protocol's numbers and the names of what can be chosen, for all that need them.

Source: Schiff et al. 2024, arXiv:2403.03234, appendix. The command line reads this file while it
starts, so it imports nothing heavy.
"""

from __future__ import annotations

from typing import Literal, get_args

LRS = (1e-3, 2e-3)
BATCH_SIZES = (128, 256)
EPOCHS = 10
SEEDS = 5
WEIGHT_DECAY = 0.1
WARMUP = 0.01  # share of the steps

DEFAULT_LENGTH = 1024  # most bases that are read where nothing is published

Strategy = Literal["full", "probe"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
Conjoin = Literal["none", "test", "train"]
CONJOIN: tuple[Conjoin, ...] = get_args(Conjoin)
Pooling = Literal["real", "padded"]
POOLING: tuple[Pooling, ...] = get_args(Pooling)
Baseline = Literal["majority", "length", "kmer", "cnn"]
BASELINES: tuple[Baseline, ...] = get_args(Baseline)
