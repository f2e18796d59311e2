"""Commands for text; each is also a Python function."""

from seqdiff.cli.extensions import Command

COMMANDS = [
    Command(
        "generative-perplexity",
        "text.commands.generative_perplexity:generative_perplexity",
        "Text",
        "Compute perplexity under another model: seqdiff generative-perplexity runs/text",
    ),
    Command(
        "glue",
        "text.commands.glue:glue",
        "Text",
        "Fine-tune on GLUE: seqdiff glue runs/bert --task sst2 --train train.tsv --dev dev.tsv",
    ),
]
