"""``seqdiff report``: samples of a run beside real sequence, on one page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from seqdiff.cells import say
from seqdiff.checks import check_count, check_seed
from seqdiff.files import check_apart, check_parent, replacing
from seqdiff.run import default_path, find_run

if TYPE_CHECKING:
    import torch

    from genomics.report import Curves, Measured, Sets
    from seqdiff.data import Split
    from seqdiff.run import Run
    from seqdiff.samplers import Sampler
    from seqdiff.trace import Trace

_MOTIFS = "motifs.jaspar"
_ROOM = 8  # bases of a synthetic reference for each base of the samples


def report(
    run: Path,
    /,
    *,
    reference: Path | None = None,
    samples: Path | None = None,
    num: int = 100,
    out: Path | None = None,
    motifs: Path | None = None,
    trace: Path | None = None,
    markov_order: int = 5,
    seed: int = 0,
    device: str | None = None,
) -> None:
    """Compare samples of DNA with real, shuffled and Markov sequence, on one page.

    Args:
        run: Run directory, or name of a packaged model, that the samples are drawn from. Files of a
            packaged model lie in the current folder: NAME-report.html for RUN/report.html.
        reference: FASTA file of real sequence; default: RUN/reference.fa if it exists, else the
            genome that the run was trained on, of which unseen sequence is used if there is enough.
        samples: FASTA file of seqdiff sample; default: RUN/samples.fa, which is drawn if it does
            not exist.
        num: Number of samples to draw, if they are drawn.
        out: HTML file to write, and a .json file of the numbers beside it; default:
            RUN/report.html.
        motifs: Motifs to count, in JASPAR or MEME format; default: RUN/motifs.jaspar if it exists.
        trace: File of seqdiff sample --trace, whose first sequence is shown while it is drawn;
            default: one is drawn.
        markov_order: Order of the Markov chain.
        seed: Seed of all draws.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.

    Raises:
        ValueError: If a file cannot be used, or the run is not on DNA.
    """
    check_seed("report.seed", seed)
    check_count("report.num", num)
    out = default_path(run, "report.html") if out is None else out
    if out.suffix != ".html":
        raise ValueError(f"report.out must end in .html, got {out}; rename it")
    files = {"reference": reference, "samples": samples, "motifs": motifs, "trace": trace}
    for path in (out, out.with_suffix(".json")):
        check_parent("report.out", path)
        check_apart("report.out", path, {f"--{name}": given for name, given in files.items()})
    from genomics.baselines import MAX_ORDER
    from genomics.report import MIN_LENGTH, MIN_SAMPLES

    if samples is None and num < MIN_SAMPLES:
        raise ValueError(f"report.num must be at least {MIN_SAMPLES}, got {num}; draw more")
    if not 0 <= markov_order <= MAX_ORDER:
        raise ValueError(
            f"report.markov_order must be in 0..{MAX_ORDER}, got {markov_order}; 5 is usual"
        )
    from genomics.io import load_genome, read_motifs
    from genomics.report import build_sets, draw_all, measure, read_curves, read_samples
    from seqdiff.progress import progress
    from seqdiff.run import choose_device, open_sampler

    place = choose_device(device)
    given = None if samples is None else read_samples(samples)
    folder = find_run(run)
    if motifs is None and (folder / _MOTIFS).is_file():
        motifs = folder / _MOTIFS
    scored = None if motifs is None else read_motifs(motifs)
    steps = None if trace is None else read_dna_trace(trace)
    genome = None if reference is None else load_genome(reference)
    trained = open_dna_run(run, place)
    trained.dataset("train")
    sampler = open_sampler(trained, None, [])
    if samples is None:
        samples = default_path(run, "samples.fa")
        if not samples.exists():
            if trained.usual_length("report.samples") < MIN_LENGTH:
                raise ValueError(
                    f"report.samples must have at least {MIN_LENGTH} bases, got a run that draws "
                    f"{trained.usual_length('report.samples')}; give longer ones: --samples FILE"
                )
            draw_samples(trained, samples, num, seed)
    if reference is None:
        reference = find_reference(trained, seed)
    rows = read_samples(samples) if given is None else given
    genome = load_genome(reference) if genome is None else genome
    sources = Sources(run, reference, samples, motifs, out, markov_order, seed)
    data = trained.datamodule
    sets = build_sets(rows, genome, data, markov_order, seed, reference)
    with progress() as bar:
        task = bar.add_task("measuring", total=None)
        measured = measure(sets, scored, seed, lambda: bar.advance(task))
        curves = read_curves(folder / "metrics.csv", data, _split(trained))
        bar.advance(task)
    drawn = f"The first sequence of {trace}."
    if steps is None:
        length = min(len(rows[0]), data.context_length or len(rows[0]))
        steps = draw_trace(trained, sampler, length, seed)
        drawn = f"One sequence of {length:,} bases, drawn for this page by {steps.sampler}."
    figures = draw_all(measured, steps, 0, curves)
    _write(sources, sets, measured, curves, figures, drawn)
    say(f"{out}: {len(rows):,} samples; the numbers are in {out.with_suffix('.json')}")


@dataclass(frozen=True)
class Sources:
    """The sequences that a report compares."""

    run: Path
    reference: Path
    samples: Path
    motifs: Path | None
    out: Path
    markov_order: int
    seed: int


def open_dna_run(directory: Path, device: torch.device) -> Run:
    """Load a run of DNA.

    Raises:
        FileNotFoundError: If the directory is not a run.
        ValueError: If the run is not on DNA.
    """
    from seqdiff.run import load

    trained = load(directory, device=device)
    check_dna(trained)
    return trained


def draw_samples(trained: Run, path: Path, num: int, seed: int) -> None:
    """Draw samples of the training length, and write them."""
    from genomics.io import write_samples
    from seqdiff.data import Blanks
    from seqdiff.run import open_sampler

    length = trained.usual_length("report.samples")
    blanks = Blanks(num, length, trained.process.unknown_id)
    drawn = trained.draw(blanks, sampler=open_sampler(trained, None, []), seed=seed)
    with replacing(path) as temporary:
        write_samples(temporary, drawn, blanks.names)


def find_reference(trained: Run, seed: int) -> Path:
    """Find real sequence for a run: RUN/reference.fa, or the FASTA file that it was trained on.

    For a synthetic source, a new genome is drawn and written to RUN/reference.fa.

    Raises:
        ValueError: If the run was not trained on a FASTA file.
    """
    from genomics.data import SyntheticDataModule
    from genomics.io import write_fasta
    from genomics.sequence import decode

    path = default_path(trained.directory, "reference.fa")
    if path.exists():
        return path
    data = trained.datamodule
    if isinstance(data, SyntheticDataModule):
        room = _ROOM * 100 * data.length
        write_fasta(path, ["another"], [decode(data.source.sample(1, room, seed + 1)[0])])
        return path
    fasta = getattr(data, "fasta", None)
    if fasta is None:
        raise ValueError(
            f"report.reference must be given for {trained.directory}, which names no FASTA file, "
            "got none; add --reference genome.fa"
        )
    return Path(fasta)


def check_dna(trained: Run) -> None:
    """Check that a run is on DNA.

    Raises:
        ValueError: If the run is not on DNA.
    """
    from genomics.sequence import DNATokenizer

    if trained.tokenizer.fingerprint != DNATokenizer().fingerprint:
        raise ValueError(
            f"report.directory must be a run on DNA, got {trained.directory}, whose tokenizer is "
            f"{trained.tokenizer.fingerprint}; choose another run"
        )


def read_dna_trace(path: Path) -> Trace:
    """Read a trace of DNA.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is not a trace, or not a trace of DNA.
    """
    from genomics.sequence import BASES
    from seqdiff.trace import read_trace

    trace = read_trace(path)
    if trace.symbols != (*BASES, "N"):
        raise ValueError(
            f"report.trace must be a trace of DNA, got {path} with {len(trace.symbols)} symbols; "
            "give one that was drawn from this run"
        )
    return trace


def draw_trace(trained: Run, sampler: Sampler, length: int, seed: int) -> Trace:
    """Draw one sequence and keep every step."""
    from genomics.sequence import BASES
    from seqdiff.data import Blanks
    from seqdiff.run import draw, fit_sampler
    from seqdiff.samplers import Recorder, sampler_name

    fitted = fit_sampler(sampler, trained, stop=None, extrapolate=False)
    recorder = Recorder()
    blanks = Blanks(1, length, trained.process.unknown_id)
    list(draw(trained, fitted, blanks, seed=seed, batch_size=1, recorder=recorder))
    name = sampler_name(type(fitted))
    return recorder.trace(sampler=name, names=blanks.names, symbols=[*BASES, "N"])


def _split(trained: Run) -> Split:
    """Return the split to score Markov chains on: test if it exists, else valid, else train."""
    for split in ("test", "valid"):
        try:
            trained.datamodule.dataset(split)
        except ValueError:
            continue
        return split
    return "train"


def _write(
    sources: Sources,
    sets: Sets,
    measured: Measured,
    curves: Curves,
    figures: dict[str, str],
    drawn: str,
) -> None:
    """Write both files or neither, after their contents are complete."""
    import json

    from genomics.report import About, numbers, write_page

    lengths = [len(row) for row in sets.real]
    span = (
        f"{min(lengths):,}" if len(set(lengths)) == 1 else f"{min(lengths):,} to {max(lengths):,}"
    )
    facts = {
        "run": str(sources.run),
        "samples": f"{sources.samples}: {len(lengths):,} of {span} bases",
        "reference": str(sources.reference),
        "real windows": sets.origin,
        "training sequence": f"{len(sets.training):,} bases, one strand",
    }
    if sources.motifs is not None:
        facts["motifs"] = str(sources.motifs)
    about = About(facts, sets.held_out, sources.markov_order)
    page = write_page(about, measured, curves, figures, drawn)
    text = json.dumps(numbers(about, sources.seed, measured, curves), indent=1, allow_nan=False)
    with replacing(sources.out) as new, replacing(sources.out.with_suffix(".json")) as beside:
        new.write_text(page, encoding="utf-8")
        beside.write_text(text + "\n", encoding="utf-8")
