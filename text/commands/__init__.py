"""The command-line commands of this domain."""
