"""Evaluation of text models: zero-shot suites, GLUE, generative perplexity."""
