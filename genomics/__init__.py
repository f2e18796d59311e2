"""DNA: sequences, file formats, data modules, baselines, variants, fine-tuning and reports."""
