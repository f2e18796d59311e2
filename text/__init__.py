"""Text: tokenizers over the ids of the core."""
