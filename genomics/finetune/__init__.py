"""Fine-tuning on labelled DNA: tasks, protocol, grid and tables."""
