"""Models of sequences that are fitted by counting, for any tokens."""

from seqdiff.experts.backoff import BackoffModel, Block, ContextCounts, longest_order
from seqdiff.experts.mixture import FOLDS, PARTS, ExpertsConfig, NGramExperts, Terms
from seqdiff.experts.ngrams import NGramTable, Rows, most_order

__all__ = [
    "FOLDS",
    "PARTS",
    "BackoffModel",
    "Block",
    "ContextCounts",
    "ExpertsConfig",
    "NGramExperts",
    "NGramTable",
    "Rows",
    "Terms",
    "longest_order",
    "most_order",
]
