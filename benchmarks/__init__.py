"""One script for each claim about speed; none of it is installed."""
