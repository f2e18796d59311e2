"""``seqdiff demo``: the main job from end to end, on a genome whose entropy is known."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from seqdiff.cli.extensions import command_line

if TYPE_CHECKING:
    from rich.table import Table

    from genomics.data import SyntheticDataModule
    from seqdiff.likelihood import Likelihood
    from seqdiff.run import Run

_EVALUATIONS, _NUM_SAMPLES, _SEED = 8, 64, 1
_ROOM = 8  # bases of the reference for each base of the samples


def demo(config: Path, /, *, output: Path | None = None) -> None:
    """Train on a synthetic genome and compare the model's bound with the true entropy.

    Args:
        config: YAML file of a run on SyntheticDataModule.
        output: Run directory; default: that of CONFIG.

    Raises:
        ValueError: If the run is not on a ``SyntheticDataModule``.
    """
    from rich.console import Console

    from genomics.data import SyntheticDataModule
    from seqdiff.cli.train import fit
    from seqdiff.likelihood import StratifiedK
    from seqdiff.run import estimate, load, parse_run, start_run

    parsed = parse_run(config, [] if output is None else ["--output", str(output)])
    wanted = "genomics.data.SyntheticDataModule"
    if parsed["data"]["class_path"] != wanted:
        raise ValueError(
            f"demo.config must have data.class_path {wanted}, got {parsed['data']['class_path']}; "
            "for data without a known entropy use: seqdiff train, seqdiff evaluate"
        )
    fit(parsed["output"], partial(start_run, parsed))
    trained = load(parsed["output"])
    data = trained.datamodule
    assert isinstance(data, SyntheticDataModule)
    result = estimate(trained, "test", estimator=StratifiedK(_EVALUATIONS), seed=_SEED)
    console = Console()
    console.print(build_table(result, data))
    console.print(write_report(trained), highlight=False, soft_wrap=True)


def write_report(trained: Run) -> str:
    """Draw samples, and write a report that compares them with a new genome of the same source.

    Returns:
        Text that names the written files and the next commands.
    """
    from genomics.commands.report import report
    from genomics.data import SyntheticDataModule
    from genomics.io import consensus, write_fasta, write_motifs, write_samples
    from genomics.sequence import decode
    from seqdiff.data import Blanks
    from seqdiff.run import draw, save_trace
    from seqdiff.samplers import FirstHittingSampler, Recorder

    data, directory = trained.datamodule, trained.directory
    assert isinstance(data, SyntheticDataModule)
    blanks = Blanks(_NUM_SAMPLES, data.length, trained.process.unknown_id)
    recorder, sampler = Recorder(), FirstHittingSampler()
    drawn = draw(trained, sampler, blanks, seed=_SEED, batch_size=_NUM_SAMPLES, recorder=recorder)
    samples, reference, motifs, trace, page = (
        directory / name
        for name in ("samples.fa", "reference.fa", "motifs.jaspar", "steps.npz", "report.html")
    )
    write_samples(samples, drawn, blanks.names)
    save_trace(trace, recorder, sampler, blanks.names, trained.tokenizer)
    room = _ROOM * _NUM_SAMPLES * data.length
    write_fasta(reference, ["another"], [decode(data.source.sample(1, room, _SEED)[0])])
    planted = [motif.matrix for motif in data.source.motifs]
    write_motifs(motifs, [f"planted_{consensus(matrix)}" for matrix in planted], planted)
    report(
        directory,
        reference=reference,
        samples=samples,
        motifs=motifs,
        trace=trace,
        out=page,
        seed=0,
    )
    return next_lines(directory, samples, page)


def build_table(result: Likelihood, data: SyntheticDataModule) -> Table:
    """Build a table of the model's bound, the true entropy, their gap, and the Markov chains.

    Args:
        result: The model's bound on the test split.
        data: The source that the split was drawn from.
    """
    from rich.table import Table

    from genomics.data import entropy_rate

    window, rate = data.source_entropy(), entropy_rate(data.source)
    bound, bound_error = result.bits_per_token, result.bits_per_token_error
    gap_error = (bound_error**2 + window.bits_per_token_error**2) ** 0.5
    source, *chains = data.baselines("test").items()
    paired = result.minus(source[1])
    rows: list[tuple[str, float, float]] = [
        ("model, upper bound", bound, bound_error),
        (
            f"source, entropy of {data.length} bases",
            window.bits_per_token,
            window.bits_per_token_error,
        ),
        ("source, entropy rate", rate.bits_per_token, rate.bits_per_token_error),
        ("gap, model - entropy", bound - window.bits_per_token, gap_error),
        ("gap, on the same windows", paired.bits_per_token, paired.bits_per_token_error),
        *((name, found.bits_per_token, found.bits_per_token_error) for name, found in chains),
    ]
    table = Table(title=f"{len(result.nats):,} test windows of {data.length} bases")
    table.add_column("")
    table.add_column("bits/base", justify="right")
    table.add_column("± SE", justify="right")
    for name, bits, error in rows:
        table.add_row(name, f"{bits:.4f}", f"{error:.4f}")
    return table


def next_lines(directory: Path, samples: Path, page: Path) -> str:
    """Return lines that name the files and the next commands."""
    train_mine = ("--data.fasta", "YOUR.fa", "--output", "runs/mine")
    return (
        f"Wrote {samples}, and {page}, which compares them with real sequence. Next:\n"
        f"  {command_line('sample', directory)}\n"
        f"  {command_line('train', 'configs/experiment/genomics/fasta.yaml', *train_mine)}"
    )
