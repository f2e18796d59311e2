"""DNA as ids: the alphabet, strands, intervals, k-mers, motifs, shuffles."""
