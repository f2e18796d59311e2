"""DNA: the alphabet, FASTA and BED files, data modules, sources and baselines."""
