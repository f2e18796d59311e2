"""From a domain's sequences to batches of tokens."""
