"""The commands that text adds to the command line."""
