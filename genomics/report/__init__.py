"""``seqdiff report``: generated DNA beside real, shuffled and Markov sequence, on one page."""
