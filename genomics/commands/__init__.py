"""The commands that genomics adds to the command line."""
