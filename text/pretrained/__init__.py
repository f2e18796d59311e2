"""Published text models: loading and checking."""
