"""Models of sequences that are fitted by counting, for any tokens."""

from seqdiff.experts.backoff import BackoffModel, Block, ContextCounts, longest_order

__all__ = ["BackoffModel", "Block", "ContextCounts", "longest_order"]
