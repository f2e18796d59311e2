"""The commands that genomics adds to the command line; each is a Python function, too."""

from seqdiff.cli.extensions import Command

COMMANDS = [
    Command(
        "demo",
        "genomics.commands.demo:demo",
        "Train",
        "Train on a synthetic genome of known entropy: seqdiff demo CONFIG",
    ),
    Command(
        "report",
        "genomics.commands.report:report",
        "DNA",
        "Compare generated with real DNA on one page: seqdiff report runs/mine",
    ),
    Command(
        "variants",
        "genomics.commands.variants:variants",
        "DNA",
        "Score a VCF file: seqdiff variants runs/mine --vcf a.vcf --fasta genome.fa --out a.tsv",
    ),
    Command(
        "ism",
        "genomics.commands.ism:ism",
        "DNA",
        "In-silico mutagenesis: seqdiff ism runs/mine --fasta some.fa --out effects.npz",
    ),
    Command(
        "embed",
        "genomics.commands.embed:embed",
        "DNA",
        "Hidden states of sequences: seqdiff embed runs/mine --fasta some.fa --out vectors.npz",
    ),
    Command(
        "finetune",
        "genomics.commands.finetune:finetune",
        "DNA",
        "Fine-tune on labelled DNA: seqdiff finetune runs/mine --data tasks --out runs/tuned",
    ),
    Command(
        "oracle train",
        "genomics.commands.oracle:train",
        "DNA",
        "Predict measured values: seqdiff oracle train a.tsv --signals activity --out runs/o",
    ),
    Command(
        "oracle evaluate",
        "genomics.commands.oracle:evaluate",
        "DNA",
        "Correlations with measured values: seqdiff oracle evaluate runs/o a.tsv",
    ),
    Command(
        "fetch",
        "genomics.commands.fetch:fetch",
        "DNA",
        "Download an archive, verified: seqdiff fetch hg38 --checksum md5:DIGEST --out data",
    ),
]
