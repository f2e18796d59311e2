"""Text: tokenizers, corpora, pretrained models and evaluation."""
