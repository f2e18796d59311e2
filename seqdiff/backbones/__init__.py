"""Networks that emit K logits a position, behind one protocol."""
