"""The commands for runs on proteins; seqdiff imports their functions when they are called."""

from seqdiff.cli.extensions import Command

COMMANDS = [
    Command(
        "report",
        "seqdiff_proteins.report:report",
        "Proteins",
        "Compare samples with the family on one page: seqdiff report runs/family",
    ),
    Command(
        "variants",
        "seqdiff_proteins.variants:variants",
        "Proteins",
        "Score single mutants: seqdiff variants runs/family --fasta a.fasta --out effects.tsv",
    ),
]
