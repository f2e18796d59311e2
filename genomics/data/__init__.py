"""Data modules for DNA: genome windows, splits, synthetic genomes."""
