"""Text corpora: documents, splits, shards, rows and the data module."""
