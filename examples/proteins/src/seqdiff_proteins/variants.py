"""``seqdiff variants`` for runs on proteins: effects of single mutants of one protein."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqdiff.cells import say
from seqdiff.checks import check_seed
from seqdiff.files import check_apart
from seqdiff.tables import check_table, writing_table
from seqdiff_proteins.alphabet import AMINO_ACIDS, GAP, ProteinTokenizer, check_proteins
from seqdiff_proteins.data import AlignedProteins
from seqdiff_proteins.fasta import read_fasta

if TYPE_CHECKING:
    from seqdiff.run import Run

_MUTANT = re.compile(f"([{AMINO_ACIDS}])([0-9]+)([{AMINO_ACIDS}])")
_RESAMPLES = 200
_WORD = 5  # residues that similar proteins share
_CANDIDATES = 20


def variants(
    run: Path,
    /,
    *,
    fasta: Path,
    out: Path,
    mutants: Path | None = None,
    fitness: str | None = None,
    seed: int = 0,
    device: str | None = None,
) -> None:
    """Score single mutants of a protein by masked marginals, beside BLOSUM62 and a site profile.

    The masked marginal of A42G is log p(G) - log p(A) at residue 42, given all other residues.

    Args:
        run: Run directory of masked diffusion on proteins. If it was trained on an alignment, the
            protein is aligned with the most similar training sequence, and mutants of residues
            outside the columns have no score.
        fasta: FASTA file with one protein.
        out: Table to write (.tsv or .parquet): mutant, masked_marginal, blosum62, site_profile.
        mutants: Table (.tsv or .csv, perhaps .gz) with a column mutant, or else name, of mutants
            such as A42G; default: all single mutants.
        fitness: Column of measured values in the table of mutants; prints Spearman correlations.
        seed: Seed of the standard errors of the correlations.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.

    Raises:
        ValueError: If a file or the run cannot be used.
    """
    check_seed("variants.seed", seed)
    check_table("variants.out", out)
    check_apart("variants.out", out, {"--fasta": fasta, "--mutants": mutants})
    if fitness is not None and mutants is None:
        raise ValueError("variants.fitness must go with --mutants, got none; add the table")
    records = read_fasta(fasta)
    if len(records) != 1:
        raise ValueError(
            f"variants.fasta must hold one protein, got {len(records)} in {fasta}; keep one"
        )
    wild = records[0][1].upper()
    ProteinTokenizer().encode(wild)
    names, measured = _read_mutants(mutants, fitness)
    if mutants is None:
        known = [(i, a) for i, a in enumerate(wild, start=1) if a in AMINO_ACIDS]
        names = [f"{a}{i}{b}" for i, a in known for b in AMINO_ACIDS if a != b]
    found = _parse(names, wild, mutants or fasta)

    from seqdiff.run import choose_device, load

    trained = load(run, device=choose_device(device))
    check_proteins("variants.run", trained.tokenizer)
    scores = score_mutants(trained, wild, found)
    columns = {"masked_marginal": scores["masked_marginal"], "blosum62": scores["blosum62"]}
    if "site_profile" in scores:
        columns["site_profile"] = scores["site_profile"]
    kinds = {"mutant": str, **dict.fromkeys(columns, float)}
    if measured is not None:
        columns[fitness or ""], kinds[fitness or ""] = measured, float
    with writing_table(out, kinds) as write:
        cells = ([_cell(value) for value in row] for row in zip(*columns.values(), strict=True))
        write([name, *row] for name, row in zip(names, cells, strict=True))
    there = ~np.isnan(scores["masked_marginal"])
    say(f"{out}: {len(names):,} mutants, {int(there.sum()):,} scored")
    if measured is None:
        return
    sites = np.array([place for place, _ in found])
    there &= ~np.isnan(measured)
    for name, value, error in correlations(scores, measured, sites, there, seed):
        say(f"{name:>17}  Spearman {value:+.3f} +- {error:.3f}")
    say(
        f"over {int(there.sum()):,} mutants of {len(set(sites[there])):,} residues; +- is the "
        "standard error over residues"
    )


def score_mutants(run: Run, wild: str, mutants: Sequence[tuple[int, str]]) -> dict[str, np.ndarray]:
    """Score single mutants; NaN where there is no score.

    Args:
        run: A run of masked diffusion on proteins.
        wild: The protein.
        mutants: Position, from 0, and new residue of each mutant.

    Returns:
        ``masked_marginal``, ``blosum62`` and, for runs on an alignment, ``site_profile``. Source of
        the masked marginal: Meier et al. 2021, "Language models enable zero-shot prediction of the
        effects of mutations on protein function", equation 1.

    Raises:
        ValueError: If the run is not of masked diffusion, or the protein is too long.
    """
    from Bio.Align import substitution_matrices

    matrix: Any = substitution_matrices.load("BLOSUM62")
    found = {"blosum62": np.array([matrix[wild[place]][new] for place, new in mutants])}
    tokenizer, data = run.tokenizer, run.datamodule
    row, column_of = wild, {place: place for place in range(len(wild))}
    if isinstance(data, AlignedProteins):
        row, column_of = align(wild, data)
    wanted = sorted({column_of[place] for place, _ in mutants if place in column_of})
    log_probs = {place: _log_probs(run, row, place) for place in wanted}
    scores = {"masked_marginal": log_probs}
    if isinstance(data, AlignedProteins):
        from seqdiff_proteins.baselines import log_profile

        scores["site_profile"] = dict(enumerate(log_profile(data.dataset("train"))))
    for name, table in scores.items():
        effects = np.full(len(mutants), np.nan)
        for number, (place, new) in enumerate(mutants):
            if place in column_of:
                before, after = tokenizer.encode(wild[place] + new)
                at = table[column_of[place]]
                effects[number] = at[after] - at[before]
        found[name] = effects
    return found


def _log_probs(run: Run, row: str, place: int) -> np.ndarray:
    """Mask one position, and predict it."""
    table = run.fill_probabilities(f"{row[:place]}X{row[place + 1 :]}")
    return np.log(table.probabilities[table.positions == place][0])


def align(wild: str, data: AlignedProteins) -> tuple[str, dict[int, int]]:
    """Write a protein as a row of an alignment.

    It is aligned with each of the 20 training rows that share most words of 5 residues with it
    (BLOSUM62, gap costs 11 and 1, free ends), and the best of these alignments gives the columns.

    Args:
        wild: The protein.
        data: The alignment.

    Returns:
        The row, and the column of each residue that has one.

    Raises:
        ValueError: If no training row shares a word with the protein.
    """
    from Bio.Align import PairwiseAligner, substitution_matrices

    rows = [data.tokenizer.decode(ids) for ids in data.dataset("train").tokens]
    own = _words(wild)
    shared = np.array([len(own & _words(row.replace(GAP, ""))) for row in rows])
    if not shared.any():
        raise ValueError(
            f"variants.fasta must be a protein of the family, got one that shares no {_WORD} "
            "residues in a row with a training sequence; give another"
        )
    aligner = PairwiseAligner(mode="global", open_gap_score=-11, extend_gap_score=-1)
    aligner.end_gap_score = 0
    aligner.substitution_matrix = substitution_matrices.load("BLOSUM62")
    found = []
    for number in np.argsort(-shared, kind="stable")[:_CANDIDATES]:
        columns = [column for column, symbol in enumerate(rows[number]) if symbol != GAP]
        residues = "".join(rows[number][column] for column in columns)
        found.append((aligner.align(wild, residues)[0], columns))
    best, columns = max(found, key=lambda pair: pair[0].score)
    column_of = {}
    for ours, theirs in zip(*best.aligned, strict=True):
        column_of |= dict(zip(range(*ours), columns[slice(*theirs)], strict=True))
    row = [GAP] * data.length
    for place, column in column_of.items():
        row[column] = wild[place]
    return "".join(row), column_of


def correlations(
    scores: dict[str, np.ndarray],
    measured: np.ndarray,
    sites: np.ndarray,
    there: np.ndarray,
    seed: int,
) -> list[tuple[str, float, float]]:
    """Correlate scores with measured values, with bootstrap errors over residues.

    The mutants of a residue resemble each other, so residues are resampled, with all their mutants.

    Args:
        scores: Scores by name.
        measured: Measured value of each mutant.
        sites: Residue of each mutant.
        there: Mutants to take.
        seed: Seed of the resampling.

    Returns:
        Name, Spearman correlation and standard error; then of the differences to the first score.
    """
    from scipy.stats import rankdata

    def spearman(rows: np.ndarray) -> np.ndarray:
        ranks = rankdata([measured[rows], *(s[rows] for s in scores.values())], axis=1)
        return np.corrcoef(ranks)[0, 1:]

    random = np.random.default_rng(seed)
    groups = [np.flatnonzero(there & (sites == site)) for site in np.unique(sites[there])]
    draws = random.integers(len(groups), size=(_RESAMPLES, len(groups)))
    resampled = np.array([spearman(np.concatenate([groups[g] for g in draw])) for draw in draws])
    whole, names = spearman(np.flatnonzero(there)), list(scores)
    model = names.index("masked_marginal")
    lines = [(n, float(whole[i]), float(resampled[:, i].std())) for i, n in enumerate(names)]
    for i, name in enumerate(names):
        if i != model:
            gain = resampled[:, model] - resampled[:, i]
            more = float(whole[model] - whole[i])
            lines.append((f"model - {name}", more, float(gain.std())))
    return lines


def _words(sequence: str) -> set[str]:
    return {sequence[i : i + _WORD] for i in range(len(sequence) - _WORD + 1)}


def _cell(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _read_mutants(path: Path | None, fitness: str | None) -> tuple[list[str], np.ndarray | None]:
    """Read the names of mutants and, if asked, their measured values.

    Raises:
        ValueError: If a column is missing, or a value is not a number.
    """
    if path is None:
        return [], None
    import pandas as pd

    if not path.is_file():
        raise FileNotFoundError(f"variants.mutants must be an existing file, got {path}")
    table = pd.read_csv(path, sep="\t" if ".tsv" in path.suffixes else ",", dtype=str)
    column = "mutant" if "mutant" in table else "name"
    for needed in (column, *([] if fitness is None else [fitness])):
        if needed not in table:
            raise ValueError(
                f"{path}: must have a column {needed}, got {', '.join(table)}; name another"
            )
    names = table[column].astype(str).tolist()
    if fitness is None:
        return names, None
    try:
        return names, table[fitness].to_numpy(dtype=float)
    except ValueError as error:
        raise ValueError(f"{path}: column {fitness} must hold numbers: {error}") from None


def _parse(names: Sequence[str], wild: str, path: Path) -> list[tuple[int, str]]:
    """Read mutants such as A42G as a position from 0 and a residue.

    Raises:
        ValueError: If one has another form, or its first residue is not the protein's.
    """
    found = []
    for name in names:
        parts = _MUTANT.fullmatch(name)
        if parts is None:
            raise ValueError(
                f"{path}: a mutant must be written like A42G, got {name!r}; correct it"
            )
        place = int(parts[2]) - 1
        there = wild[place] if 0 <= place < len(wild) else "no residue"
        if there != parts[1]:
            raise ValueError(
                f"{path}: {name} must name residue {place + 1} of the protein, which is {there}; "
                "give the protein that the mutants are of"
            )
        found.append((place, parts[3]))
    return found
