"""File formats of genomics: FASTA, BED, VCF, labels, downloads."""
