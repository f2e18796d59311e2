"""Tokenizers: bytes, characters and subword vocabularies."""
