"""Posteriors of unknown tokens in an n-gram chain: the arrays of a chain, and a CPU kernel."""

from seqdiff.ops.ngram_chain.dispatch import ChainArrays, chain_posterior

__all__ = ["ChainArrays", "chain_posterior"]
