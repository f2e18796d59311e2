"""The transformer of MDLM and BD3-LM: configuration, layers, block passes, cache and hub format."""
