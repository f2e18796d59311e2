"""``seqdiff design``: from wanted values to a diverse set of sequences, in one command."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from seqdiff.cells import say
from seqdiff.checks import check_count, check_seed
from seqdiff.cli.options import FlatOptions, Several, check_guidance, parse_signals
from seqdiff.files import check_folder, replacing
from seqdiff.run import EngineOptions, default_path, find_run

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from genomics.design import (
        Candidates,
        Choice,
        Designs,
        Mutagenesis,
        Oracle,
        OracleGoal,
        Predictor,
    )
    from genomics.io import MotifScores
    from seqdiff.data import Signals, Templates
    from seqdiff.run import Run
    from seqdiff.samplers import Sampler

_FASTA = (".fa", ".fasta", ".fa.gz", ".fasta.gz", ".fa.bgz", ".fasta.bgz")
_MOTIFS = "motifs.jaspar"
_HERE = EngineOptions()


def design(
    run: Path,
    /,
    *,
    out: Path | None = None,
    num: int = 20,
    candidates: int = 400,
    length: int | None = None,
    signal: Annotated[tuple[str, ...], Several] = (),
    signal_file: Path | None = None,
    label: str | None = None,
    guidance: float | None = None,
    guide: Path | None = None,
    guide_by: Literal["smc", "classifier"] = "smc",
    oracle: Path | None = None,
    oracle_command: str | None = None,
    maximise: str | None = None,
    judge: Path | None = None,
    allow_same_judge: bool = False,
    gc: tuple[float, float] | None = None,
    homopolymer: int | None = None,
    avoid_sites: str | None = None,
    avoid: list[str] | None = None,
    motif: list[str] | None = None,
    infill: Path | None = None,
    min_distance: int | None = None,
    max_distance: int | None = None,
    training: Path | None = None,
    select: Literal["greedy", "determinantal"] = "greedy",
    spread: int | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    device: str | None = None,
    engine: Annotated[EngineOptions, FlatOptions] = _HERE,
) -> None:
    """Design DNA: draw candidates, filter them, and keep a diverse set of the best.

    Writes designs.tsv, designs.fa and design.html. Words to avoid, long runs of a base, motifs and
    templates hold while candidates are drawn; the other constraints filter.

    Args:
        run: Run directory, or name of a packaged model, that candidates are drawn from.
        out: Folder of the results; default: RUN/designs, or, for a packaged model, NAME-designs in
            the current folder.
        num: Number of designs; with --signal-file or --infill, for each row or record.
        candidates: Number of candidates; with --signal-file or --infill, for each row or record.
        length: Bases of a design; default: those of a training row.
        signal: Wanted value, NAME=VALUE, for a run with signals.
        signal_file: Table (.tsv or .csv) with a column name and a column for each signal: designs
            for each row.
        label: Class to draw, for a run with labels.
        guidance: Strength of guidance towards the label and the signal; default: 1.
        guide: Folder of an oracle that guides the drawing of candidates to the wanted values; the
            run is still given these values, unless --guidance is 0.
        guide_by: smc draws eight particles for each candidate and prefers those that the guide
            scores best; classifier asks the guide at every position, for every base, and needs one
            that was trained with --mask-inputs.
        oracle: Folder of an oracle that ranks the candidates, by how close its predictions come to
            the wanted values; default: the guide, or without one the order of drawing.
        oracle_command: Command that ranks in place of an oracle, run without a shell: it reads
            FASTA on standard input and writes a number a line, its prediction of the wanted signal
            or of the value to maximise.
        maximise: Guide to and rank by the highest prediction of this value instead.
        judge: Folder of another oracle, which predicts the designs and takes no part in the choice.
        allow_same_judge: Accept a judge that also guided or ranked the candidates.
        gc: Least and greatest fraction of G and C.
        homopolymer: Longest run of one base that is allowed.
        avoid_sites: Restriction enzymes, separated by commas, whose sites no design holds on either
            strand.
        avoid: A word, with IUPAC codes, that no design holds on either strand; may be repeated.
        motif: PATTERN or PATTERN@START, with IUPAC codes: bases that every design holds, starting
            at START (counted from 0) or at a random position; may be repeated.
        infill: FASTA file of templates: known bases stay, N and IUPAC codes are filled.
        min_distance: Least edit distance to every training sequence, on either strand.
        max_distance: Greatest edit distance to the nearest training sequence.
        training: FASTA file or table of training sequences to compare with; default: those of the
            run, if it was trained on a table.
        select: greedy takes the best designs that are far enough apart; determinantal weighs
            quality against similarity of 4-mers.
        spread: Least edit distance between two designs, for greedy; default: a tenth of the length.
        seed: Seed of the draws.
        batch_size: Candidates drawn at a time; default: as many as fit well.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.
        engine: Where candidates are drawn; they are filtered and chosen in this process.

    Raises:
        ValueError: If an option, a file or the run cannot be used, constraints contradict each
            other, or no candidate passes the filters.
    """
    # Everything that the candidates depend on, apart from the files themselves.
    given = {
        name: value for name, value in locals().items() if name not in ("run", "engine", "out")
    }
    for name, value in (("num", num), ("candidates", candidates)):
        check_count(f"design.{name}", value)
    for name, value in (("length", length), ("batch_size", batch_size)):
        if value is not None:
            check_count(f"design.{name}", value)
    if num > candidates:
        raise ValueError(
            f"design.candidates must be at least num = {num}, got {candidates}; draw many more"
        )
    if spread is not None:
        check_count("design.spread", spread, 0)
    check_seed("design.seed", seed)
    check_guidance("design.guidance", guidance)
    wanted = parse_signals("design.signal", signal)
    _check_files(signal_file, infill, training)
    _check_templates(wanted, signal_file, motif, infill, length)
    _check_oracles(oracle, judge, guide, allow=allow_same_judge)
    _check_ranking(oracle, oracle_command, guide, maximise)
    out = default_path(run, "designs") if out is None else out
    check_folder("design.out", out)
    engine.check("design", out)

    from genomics.commands.report import check_dna
    from genomics.design import Choice, Constraints, check_goal, check_training, choose
    from seqdiff.extras import require_extra
    from seqdiff.progress import progress
    from seqdiff.run import load
    from seqdiff.samplers import Recorder, check_room, sampler_name

    constraints = Constraints(
        gc=gc,
        homopolymer=homopolymer,
        avoid_sites=tuple(filter(None, (avoid_sites or "").split(","))),
        avoid=tuple(avoid or ()),
        motif=tuple(motif or ()),
        min_distance=min_distance,
        max_distance=max_distance,
    )
    choice = Choice(constraints=constraints, num=num, how=select, spread=spread, maximise=maximise)
    require_extra("rapidfuzz", "design", "genomics")
    place = engine.place("design", device)
    trained = load(run, device=place)
    check_dna(trained)
    ranking, judging = open_oracles(oracle, judge, place, allow=allow_same_judge)
    guiding = open_guide(guide, guide_by, judging, place, allow=allow_same_judge)
    names, known = read_training(trained, training)
    check_training(constraints, known)
    templates, values, targets = _requests(
        trained,
        candidates,
        length,
        wanted,
        signal_file,
        motif,
        infill,
        apart=guiding is not None and maximise is None,
    )
    if oracle_command is not None:
        ranking = _open_command(oracle_command, trained, values, maximise)
    elif ranking is None:
        ranking = guiding
    check_goal(choice, ranking)
    longest = max(max(part.lengths) for part in templates)
    for name, each in (("guide", guiding), ("oracle", ranking), ("judge", judging)):
        _check_length(name, each, longest)
    if guide_by == "classifier" and guiding is not None:
        _check_one_length(trained, templates)
    ways = []
    for number in range(len(templates)):  # as many candidates for each
        row = None if values is None else values[number * candidates]
        ways.append(_open_way(trained, guiding, guide_by, maximise, row))
    if oracle_command is not None:
        _try_command(ranking, longest)
    check_room(sum(len(part.names) for part in templates), longest)
    recorder, name = Recorder(), sampler_name(type(ways[0][0]))
    draw = functools.partial(
        trained.draw,
        label=label,
        guidance=guidance,
        batch_size=batch_size,
        recorder=recorder,
        avoid=constraints.automaton(trained.tokenizer),
    )
    files = {"signal_file": signal_file, "infill": infill, "training": training, "guide": guide}
    sequences: list[str] = []
    with engine.start("design", trained, out, device, files, given) as computing:
        if guide is not None and computing.device_type(trained) != place.type:
            raise ValueError(
                "design.guide must be on the CPU with --engine ray, got a GPU; add --device cpu"
            )
        for number, (part, (sampler, goal)) in enumerate(zip(templates, ways, strict=True)):
            recorder.first = len(sequences)
            own = slice(recorder.first, recorder.first + len(part.names))
            sequences += draw(
                part,
                sampler=sampler,
                seed=_seed_of(trained, number, len(templates), seed),
                signal=None if values is None else values[own],
                steer=None if goal is None else functools.partial(goal.steer, length=longest),
                engine=computing,
            )
        everyone = [each for part in templates for each in part.names]
        found = _candidates(trained, everyone, sequences, targets, values)
        with progress() as bar:
            task = bar.add_task("comparing with training", total=len(known), visible=bool(known))

            def show(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total)

            designs = choose(found, choice, ranking, judging, known, show)
        facts = {
            "run": str(run),
            "wanted": _describe_wanted(trained, wanted, signal_file, maximise),
            "candidates": f"{len(found.sequences):,} by {name}, seed {seed}; "
            f"{len(designs.passed):,} passed; failed: {designs.failures}",
            "constraints": _describe(constraints, infill),
            "designs": f"{len(designs.chosen):,}, {select}",
            "guide": "none" if guide is None else f"{guide}, by {guide_by}",
            "oracle": str(oracle or oracle_command or guide or "none"),
            "judge": "none" if judge is None else str(judge),
            "training": f"{len(known):,} sequences" if known else "none",
        }
        same = judge is not None and judge.resolve() in [p.resolve() for p in (oracle, guide) if p]
        trace = recorder.trace(sampler=name, names=everyone, symbols=[*"ACGT", "N"])
        from genomics.design import write_design_page

        _write(
            out,
            designs,
            choice,
            names,
            lambda rows: write_design_page(
                facts,
                designs,
                rows,
                trace=trace,
                training=known,
                motifs=_read_motifs(run),
                mutagenesis=_mutate(designs, ranking, maximise),
                same_judge=same,
            ),
        )
    chosen, asked = len(designs.chosen), num * len(targets)
    fewer = f" ({asked:,} were asked for; lower --spread or raise --candidates)"
    say(
        f"{out}: {chosen:,} {'design' if chosen == 1 else 'designs'}"
        f"{fewer if chosen < asked else ''} of {len(found.sequences):,} candidates, of which "
        f"{len(designs.passed):,} passed; failed: {designs.failures}"
    )


def _check_files(*files: Path | None) -> None:
    for name, path in zip(("signal_file", "infill", "training"), files, strict=True):
        if path is not None and not path.is_file():
            raise FileNotFoundError(
                f"design.{name} must be an existing file, got {path}; check the path"
            )


def _check_templates(
    wanted: dict[str, float],
    signal_file: Path | None,
    motif: list[str] | None,
    infill: Path | None,
    length: int | None,
) -> None:
    """Check which options go together.

    Raises:
        ValueError: If two options give the same thing.
    """
    if wanted and signal_file is not None:
        raise ValueError(
            f"design.signal must be left out with --signal-file, got {next(iter(wanted))}; the "
            "file gives the values"
        )
    if infill is None:
        return
    for name, value in (("motif", motif), ("length", length), ("signal_file", signal_file)):
        if value is not None:
            raise ValueError(
                f"design.{name} must be left out with --infill, got {value}; the records of the "
                "file give length and bases, and one signal holds for all"
            )


def _check_oracles(
    oracle: Path | None, judge: Path | None, guide: Path | None, *, allow: bool
) -> None:
    """Check the folders of oracles.

    Raises:
        FileNotFoundError: If one does not exist.
        ValueError: If the judge also guides or ranks the candidates.
    """
    for name, path in (("oracle", oracle), ("judge", judge), ("guide", guide)):
        if path is not None and not path.is_dir():
            raise FileNotFoundError(
                f"design.{name} must be the folder of an oracle, got {path}; train one"
            )
    for path, does in ((oracle, "ranks"), (guide, "guides")):
        same = judge is not None and path is not None and judge.resolve() == path.resolve()
        if same and not allow:
            raise ValueError(
                f"design.judge must be another oracle than the one that {does} the candidates, got "
                f"{judge} for both; train one on other sequences, or add --allow-same-judge"
            )


def _check_ranking(
    oracle: Path | None, command: str | None, guide: Path | None, maximise: str | None
) -> None:
    """Check that candidates are ranked in one way.

    Raises:
        ValueError: If an oracle and a command rank, or nothing can be maximised.
    """
    if oracle is not None and command is not None:
        raise ValueError(
            f"design.oracle_command must be left out with --oracle, got {command!r}; only one can "
            "rank the candidates"
        )
    if maximise is not None and oracle is None and command is None and guide is None:
        raise ValueError(
            f"design.maximise must come with an oracle, got {maximise!r} without; add --oracle DIR"
        )


def open_oracles(
    oracle: Path | None, judge: Path | None, device: torch.device, *, allow: bool
) -> tuple[Predictor | None, Predictor | None]:
    """Load the oracle that ranks and the one that judges.

    Raises:
        ValueError: If a folder holds no oracle, or both were trained on the same sequences.
    """
    if oracle is None and judge is None:
        return None, None
    from genomics.design import Oracle, check_judge

    ranking = None if oracle is None else Oracle.load(oracle, device)
    judging = None if judge is None else Oracle.load(judge, device)
    if ranking is not None and judging is not None:
        check_judge(judging, ranking, allow=allow)
    return ranking, judging


def open_guide(
    guide: Path | None,
    guide_by: str,
    judge: Predictor | None,
    device: torch.device,
    *,
    allow: bool,
) -> Oracle | None:
    """Load the oracle that guides.

    Raises:
        ValueError: If the folder holds no oracle, it does not fit the way of guiding, or the judge
            was trained on the same sequences.
    """
    if guide is None:
        return None
    from genomics.design import CommandOracle, Oracle, check_judge, check_masked

    guiding = Oracle.load(guide, device)
    if guide_by == "classifier":
        check_masked(guiding)
    if isinstance(judge, Oracle | CommandOracle):
        check_judge(judge, guiding, allow=allow)
    return guiding


def _open_command(
    command: str, trained: Run, values: Signals | None, maximise: str | None
) -> Predictor:
    """Make an oracle of a command, which predicts the value to maximise or the wanted one.

    Raises:
        ValueError: If several values are wanted.
    """
    import numpy as np

    from genomics.design import CommandOracle

    names = [] if values is None else list(trained.datamodule.signals or ())
    wanted = [name for i, name in enumerate(names) if not np.isnan(values[:, i]).all()]  # type: ignore[index]
    if maximise is None and len(wanted) != 1:
        raise ValueError(
            "design.oracle_command must come with one wanted signal or with --maximise, since it "
            f"predicts one value, got {', '.join(wanted) or 'none'}; name the one by --maximise, "
            "or rank by --oracle"
        )
    return CommandOracle(command, maximise or wanted[0])


def _try_command(oracle: Predictor | None, length: int) -> None:
    """Run a command on two sequences, before candidates are drawn."""
    assert oracle is not None
    oracle.predict(["A" * length, "C" * length])


def _check_length(name: str, oracle: Predictor | None, length: int) -> None:
    """Check that an oracle of ours predicts sequences of some length.

    Raises:
        ValueError: If it was trained on shorter ones.
    """
    from genomics.design import Oracle

    if isinstance(oracle, Oracle) and oracle.config.length < length:
        raise ValueError(
            f"design.{name} must predict sequences of {length} bases, as the designs have, got an "
            f"oracle of at most {oracle.config.length}; shorten the designs, or train one on such "
            "sequences"
        )


def _check_one_length(trained: Run, templates: list[Templates]) -> None:
    """Check that a classifier of blocks, which is shown whole rows, knows their length.

    Raises:
        ValueError: If templates have different lengths.
    """
    lengths = sorted({length for part in templates for length in part.lengths})
    if trained.denoiser.context == "block" and len(lengths) > 1:
        raise ValueError(
            "design.infill must hold records of one length with --guide-by classifier, got "
            f"{lengths[0]} to {lengths[-1]} bases; design them apart, or take --guide-by smc"
        )


def _open_way(
    trained: Run,
    guide: Oracle | None,
    guide_by: str,
    maximise: str | None,
    values: Signals | None,
) -> tuple[Sampler, OracleGoal | None]:
    """Return the sampler of a target, and the goal that the model is steered to.

    Args:
        trained: The run.
        guide: The oracle that guides, if there is one.
        guide_by: How it guides.
        maximise: Name of the value to maximise.
        values: The wanted values of the target.

    Raises:
        ValueError: If the guide predicts no wanted value.
    """
    import numpy as np

    from genomics.design import OracleGoal
    from seqdiff.run import open_sampler

    usual = open_sampler(trained, None, [])
    if guide is None:
        return usual, None
    names = [] if values is None else list(trained.datamodule.signals or ())
    goals = {} if values is None else dict(zip(names, values.tolist(), strict=True))
    goals = {name: goal for name, goal in goals.items() if not np.isnan(goal)}
    goal = OracleGoal(oracle=guide, targets=goals, maximise=maximise)
    if guide_by == "classifier":
        return usual, goal
    sampler = goal.sampler()
    sampler.check_fit(trained.denoiser)
    return sampler, None


def _seed_of(trained: Run, number: int, draws: int, seed: int) -> int:
    """Return the seed of one of several draws."""
    return seed if draws == 1 else int(trained.row_seeds(draws, seed)[number]) % 2**32


def read_training(run: Run, path: Path | None) -> tuple[list[str], list[str]]:
    """Read training sequences from a file, or from the table that a run was trained on.

    Args:
        run: The run.
        path: FASTA file or table; ``None`` for the training split of the run, if its data are a
            table that can be read.

    Returns:
        Names and sequences; none without a file, if the run has no table.

    Raises:
        ValueError: If the file is not valid.
    """
    from genomics.data import TableDataModule
    from genomics.io import read_table, read_templates

    data = run.datamodule
    if path is not None and path.name.endswith(_FASTA):
        records = read_templates(path)
        return [name for name, _ in records], [sequence for _, sequence in records]
    if path is not None:
        column = data.sequence if isinstance(data, TableDataModule) else "sequence"
        table = read_table(path, sequence=column)
        return table.names, table.sequences
    if not isinstance(data, TableDataModule) or not Path(data.table).is_file():
        return [], []
    table = data.dataset("train").table
    return table.names, table.sequences


def _requests(
    trained: Run,
    count: int,
    length: int | None,
    wanted: dict[str, float],
    signal_file: Path | None,
    motif: list[str] | None,
    infill: Path | None,
    *,
    apart: bool,
) -> tuple[list[Templates], Signals | None, list[str]]:
    """Make the templates, signals and targets: ``count`` candidates for each target.

    Returns:
        The templates of each draw: a single one unless targets with values of their own are drawn
        ``apart``; the signals of all templates, ``None`` without any; the names of the targets.

    Raises:
        ValueError: If a file is not valid, or options do not fit the run.
    """
    import numpy as np

    from genomics.io import read_templates
    from seqdiff.data import Blanks, Motif, Records, Scaffolds
    from seqdiff.run import fit_signal, read_signal_file

    values, targets = None, ["design"]
    if wanted:
        values = fit_signal("design.signal", trained, wanted, 1)
    elif signal_file is not None:
        read = read_signal_file(signal_file, trained)
        assert read.names is not None  # of a file
        values, targets = read.values, read.names
    templates: list[Templates] = []
    if infill is not None:
        records = Records(read_templates(infill), count, trained.tokenizer)
        templates.append(records)
        targets = [name for name, _ in records.records]
        values = None if values is None else np.repeat(values, len(targets), axis=0)
    else:
        length = trained.usual_length("design.length") if length is None else length
        motifs = [Motif.parse(text) for text in motif or ()]
        for group in [[target] for target in targets] if apart else [targets]:
            total = count * len(group)
            if motifs:
                part: Templates = Scaffolds(motifs, total, length, trained.tokenizer)
            else:
                part = Blanks(total, length, trained.process.unknown_id)
            part.names = [f"{target}_{i}" for target in group for i in range(count)]
            templates.append(part)
    return templates, None if values is None else np.repeat(values, count, axis=0), targets


def _candidates(
    trained: Run,
    names: list[str],
    sequences: list[str],
    targets: list[str],
    values: Signals | None,
) -> Candidates:
    """Gather what was drawn and what was wanted."""
    import numpy as np

    from genomics.design import Candidates

    signals = list(trained.datamodule.signals or ()) if values is not None else []
    count = len(sequences) // len(targets)
    wanted = np.zeros((len(targets), 0)) if values is None else values[::count].astype(np.float64)
    embedding = trained.denoiser.backbone.signal_embedding
    scale = np.ones(len(signals))
    if signals and embedding is not None:
        scale = embedding.std.cpu().numpy().astype(np.float64)
    number = np.repeat(np.arange(len(targets)), count)
    return Candidates(names, sequences, number, targets, signals, wanted, scale)


def _mutate(designs: Designs, oracle: Predictor | None, maximise: str | None) -> Mutagenesis | None:
    """Predict the substitutions of the best design, for the value that ranked it."""
    from genomics.design import Mutagenesis, saturate

    if oracle is None:
        return None
    signals = [name for name in oracle.columns if name in designs.candidates.signals]
    column = maximise or next(iter([*signals, *oracle.columns]))
    best = designs.sequences[designs.best]
    return Mutagenesis(column, *saturate(oracle, best, column))


def _read_motifs(run: Path) -> list[MotifScores]:
    from genomics.io import read_motifs

    path = find_run(run) / _MOTIFS
    return read_motifs(path) if path.is_file() else []


def _write(
    out: Path,
    designs: Designs,
    choice: Choice,
    training_names: list[str],
    page: Callable[[list[dict[str, object]]], str],
) -> None:
    """Write the three files or none, after their contents are complete."""
    from genomics.design import tabulate, write_tsv
    from genomics.io import write_fasta

    rows = tabulate(designs, choice.constraints.motif, training_names)
    text, table = page(rows), write_tsv(rows)
    out.mkdir(parents=True, exist_ok=True)
    with (
        replacing(out / "designs.tsv") as tsv,
        replacing(out / "designs.fa") as fasta,
        replacing(out / "design.html") as html,
    ):
        tsv.write_text(table, encoding="utf-8")
        write_fasta(fasta, [str(row["name"]) for row in rows], designs.sequences)
        html.write_text(text, encoding="utf-8")


def _describe_wanted(
    trained: Run, wanted: dict[str, float], signal_file: Path | None, maximise: str | None
) -> str:
    parts = [f"{name} = {value:g}" for name, value in wanted.items()]
    if signal_file is not None:
        parts.append(f"{', '.join(trained.datamodule.signals or ())} of {signal_file}")
    if maximise is not None:
        parts.append(f"the greatest predicted {maximise}")
    return "; ".join(parts) or "nothing"


def _describe(constraints: object, infill: Path | None) -> str:
    from dataclasses import asdict, is_dataclass

    assert is_dataclass(constraints) and not isinstance(constraints, type)
    parts = []
    for name, value in asdict(constraints).items():
        if value not in (None, ()):
            text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
            parts.append(f"{name.replace('_', ' ')} {text}")
    if infill is not None:
        parts.append(f"templates of {infill}")
    return "; ".join(parts) or "none"
