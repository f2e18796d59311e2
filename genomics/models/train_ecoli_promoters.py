"""Trains the packaged model ``ecoli-promoters`` and writes its folder.

From a checkout, with the data in the folder ``SEQDIFF_DATA``:

    SEQDIFF_DATA=data python -m genomics.models.train_ecoli_promoters --steps 3000

The same seed gives the same weights on the same machine and versions. The model card is computed:
every number in it follows from ``Facts`` that this script measures and writes at the top.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from genomics.models import ECOLI_PROMOTERS
from seqdiff.checks import check_count
from seqdiff.files import check_folder, write_bytes

if TYPE_CHECKING:
    from seqdiff.run import Evaluation

NAME, SIGNAL, SEED = "ecoli-promoters", "log2_expr", 0
CONFIG = Path(__file__).parents[2] / "configs" / "experiment" / "genomics" / "design.yaml"
TABLE = Path("design") / "ecoli_165bp.tsv.gz"
# Each is an average over the 33 blocks of a row, so few make the error over sequences dominate.
_EVALUATIONS = 4


def train_model(table: Path, out: Path, steps: int | None = None) -> None:
    """Train on the training rows of the table, measure the bound on its test rows, and write both.

    Args:
        table: Table of promoters with columns sequence, log2_expr and split.
        out: Folder to write run.yaml, model.safetensors and README.md to.
        steps: Optimizer steps; ``None`` for those of the configuration.

    Raises:
        FileNotFoundError: If there is no table, or the script is not part of a checkout.
        ValueError: If the table is not valid.
    """
    for name, path in (("SEQDIFF_DATA", table), ("CONFIG", CONFIG)):
        if not path.is_file():
            raise FileNotFoundError(
                f"train_ecoli_promoters.{name} must lead to an existing file, got {path}; set "
                "SEQDIFF_DATA to the folder of the data, and run the script of a checkout"
            )
    if steps is not None:
        check_count("train_ecoli_promoters.steps", steps)
    check_folder("train_ecoli_promoters.out", out)
    import torch

    import seqdiff

    torch.set_num_threads(1)  # sums of several threads would depend on their number
    with tempfile.TemporaryDirectory() as folder:
        flags = [
            f"--output={Path(folder) / NAME}",
            f"--seed={SEED}",
            f"--data.table={table}",
            f"--data.signals=[{SIGNAL}]",
            "--trainer.accelerator=cpu",
            *([] if steps is None else [f"--trainer.max_steps={steps}"]),
        ]
        run = seqdiff.train(CONFIG, *flags)
        config = yaml.safe_load((run.directory / "run.yaml").read_text(encoding="utf-8"))
        weights = (run.directory / "model.safetensors").read_bytes()
        given, plain = (
            run.evaluate("test", given_signals=told, seed=SEED, evaluations=_EVALUATIONS)
            for told in (True, False)
        )
    # The folder is used on machines without the table.
    config["output"], config["data"]["init_args"]["table"] = NAME, table.name
    embedding = run.denoiser.backbone.signal_embedding
    assert embedding is not None
    taken = config["trainer"]["max_steps"]
    made_by = {key: value for key, value in config["provenance"].items() if key != "tokenizer"}
    splits = ("train", "valid", "test")
    facts = {
        "license": "mit",
        "library_name": "seqdiff",
        "data": {
            "file": table.name,
            "sha256": hashlib.sha256(table.read_bytes()).hexdigest(),
            "rows": {split: len(run.datamodule.dataset(split)) for split in splits},
        },
        "signals": {SIGNAL: [round(value, 2) for value in embedding.range[:, 0].tolist()]},
        "training": {
            "command": " ".join(
                ["python -m genomics.models.train_ecoli_promoters"]
                + ([] if steps is None else [f"--steps {steps}"])
            ),
            "seed": SEED,
            "steps": taken,
            "sequences": taken * run.datamodule.batch_size,
        },
        "versions": made_by | {"numba": version("numba"), "python": platform.python_version()},
        "weights": {
            "sha256": hashlib.sha256(weights).hexdigest(),
            "bytes": len(weights),
            "parameters": sum(weight.numel() for weight in run.denoiser.parameters()),
        },
        "bits_per_base": _numbers(given, plain),
    }
    out.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(config, sort_keys=False)
    write_bytes(out / "model.safetensors", weights)
    write_bytes(out / "run.yaml", text.encode())
    write_bytes(out / "README.md", write_card(facts).encode())


def _numbers(given: Evaluation, plain: Evaluation) -> dict[str, Any]:
    """Gather the bounds and their standard errors, beside the best baseline, in bits per base."""
    best = given.difference
    assert best is not None
    (baseline,) = (row for row in given.baselines if row.name == best.baseline)
    found = {
        "given": given.model,
        "without": plain.model,
        "baseline": baseline,
        "difference": best,
    }
    return {
        "test_sequences": given.model.num_sequences,
        "estimator": f"{given.estimator.name}, {_EVALUATIONS} evaluations per sequence",
        "best_baseline": best.baseline,
    } | {
        name: [round(row.bits_per_token, 4), round(row.bits_per_token_error or 0.0, 4)]
        for name, row in found.items()
    }


def write_card(facts: dict[str, Any]) -> str:
    """Write the model card: the facts as YAML, then the same in words.

    Args:
        facts: What ``train_model`` has measured.
    """
    rows, training, weights = facts["data"]["rows"], facts["training"], facts["weights"]
    low, high = facts["signals"][SIGNAL]
    bits = facts["bits_per_base"]
    lines = [
        ("the model, given each sequence's `log2_expr`, upper bound", bits["given"]),
        ("the model without values, upper bound", bits["without"]),
        (f"the best baseline, {bits['best_baseline']}", bits["baseline"]),
        ("the model given `log2_expr` minus the best baseline", bits["difference"]),
    ]
    metrics = "\n".join(f"| {name} | {value:.4f} | {error:.4f} |" for name, (value, error) in lines)
    versions = "\n".join(f"- {name} {value}" for name, value in facts["versions"].items())
    return f"""---
{yaml.safe_dump(facts, sort_keys=False)}---

# {NAME}

A diffusion model of *E. coli* promoters of 165 bases, conditioned on their measured expression. It
has {weights["parameters"]:,} parameters in float32: a BlockMamba that diffuses blocks of five
bases, one after the other.

```sh
seqdiff sample {NAME} --signal {SIGNAL}=2.5
seqdiff design {NAME} --signal {SIGNAL}=2.5 --num 20
```

## Intended use

- Drawing candidates for promoters of a wanted strength in *E. coli*, to be measured before use.
- Completing promoters of which some bases are given.
- Learning how seqdiff works.

`{SIGNAL}` was between {low:g} and {high:g} in training.

## Not tested

- No sequence of the model has been measured in a cell.
- Strains, growth conditions and organisms other than those of the data.
- Lengths other than 165 bases.
- Values outside the range above; the commands print a warning.
- Whether sequences have other functions in a cell, or resemble patented ones.

## Data

The table `{facts["data"]["file"]}` holds {sum(rows.values()):,} promoters of *E. coli* of 165
bases with the logarithm of their expression, from
[WangLabTHU/GPro](https://github.com/WangLabTHU/GPro) (MIT licence). That source states neither the
base of the logarithm nor the experiment. Sequences that share a 20-mer are in the same split:
{rows["train"]:,} for training, {rows["valid"]:,} for validation and {rows["test"]:,} for testing.
The table is not packaged.

## Metrics

On the {bits["test_sequences"]:,} test sequences; lower is better:

| | bits/base | ± SE |
|---|---|---|
{metrics}

SE is the standard error over sequences, with that of the estimator ({bits["estimator"]}).

## Training

```sh
SEQDIFF_DATA=data {training["command"]}
```

The data lie in `data/{TABLE}`. The configuration is
`configs/experiment/genomics/design.yaml`, with {training["steps"]:,} steps
({training["sequences"]:,} sequences, with repetition) and seed {training["seed"]}. The weights are
an average over the steps. Versions:

{versions}

SHA-256 of `model.safetensors` ({weights["bytes"]:,} bytes):
`{weights["sha256"]}`

MIT licence.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the model of the command line.

    Args:
        arguments: Without the program's name; ``None`` reads the command line.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, help="optimizer steps; default: those of CONFIG")
    parser.add_argument(
        "--out", type=Path, default=ECOLI_PROMOTERS.folder, help="folder; default: that in genomics"
    )
    given = parser.parse_args(arguments)
    table = Path(os.environ.get("SEQDIFF_DATA", "")) / TABLE
    train_model(table, given.out, given.steps)
    print(f"{given.out}: run.yaml, model.safetensors, README.md")


if __name__ == "__main__":
    main()
