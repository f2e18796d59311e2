"""What designed sequences must satisfy: words that sampling leaves out, and filters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64

from genomics.sequence import BASES, IUPAC
from seqdiff.checks import check_count, check_strings
from seqdiff.data import ConstraintTokenizer, Motif, StrandTokenizer, Tokenizer
from seqdiff.extras import require_extra
from seqdiff.samplers import WordAutomaton

# Pairs whose edit distances are computed at a time.
_BLOCK_PAIRS = 1 << 20


def reverse_complement(pattern: str) -> str:
    """Reverse and complement IUPAC codes in upper case."""
    from Bio.Seq import Seq

    return str(Seq(pattern.upper()).reverse_complement())


@cache
def restriction_sites() -> dict[str, tuple[str, ...]]:
    """Return the recognition sites of every restriction enzyme of Biopython, as IUPAC codes."""
    from Bio.Restriction import AllEnzymes

    return {str(enzyme): tuple(str(enzyme.site).upper().split("|")) for enzyme in AllEnzymes}


def find_sites(owner: str, enzyme: str) -> tuple[str, ...]:
    """Return the recognition sites of a restriction enzyme, as IUPAC codes; nearly all have one.

    The sites are those of REBASE in Biopython, on the strand that REBASE gives.

    Args:
        owner: The option, for the message.
        enzyme: Its name, such as EcoRI.

    Raises:
        ValueError: If there is no such enzyme; with similar names.
    """
    known = restriction_sites()
    if enzyme not in known:
        lower = {name.lower(): name for name in known}
        close = get_close_matches(enzyme.lower(), lower, 1)
        raise ValueError(
            f"{owner} must be the name of a restriction enzyme, got {enzyme!r}; "
            + (f"did you mean {lower[close[0]]}?" if close else "write for example EcoRI,BamHI")
        )
    return known[enzyme]


def forbid(
    owner: str,
    tokenizer: Tokenizer,
    *,
    words: Sequence[str] = (),
    sites: Sequence[str] = (),
    homopolymer: int | None = None,
) -> WordAutomaton | None:
    """Build the automaton of words that no sequence may hold on either strand.

    Args:
        owner: Name of the command, for messages.
        tokenizer: Tokenizer of the run.
        words: Words with IUPAC codes.
        sites: Names of restriction enzymes, whose recognition sites are forbidden.
        homopolymer: The longest run of one base that is allowed.

    Returns:
        The automaton; ``None`` if nothing is forbidden.

    Raises:
        ValueError: If a word is no pattern of the tokenizer, the tokenizer knows no patterns, there
            is no such enzyme, or the automaton is too large.
    """
    named: dict[str, str] = {}  # name by word
    if isinstance(words, str) or words:
        for word in check_strings(f"{owner}.avoid", words):
            named.setdefault(word.upper(), word.upper())
    for enzyme in sites:
        for site in find_sites(f"{owner}.avoid_sites", enzyme):
            named.setdefault(site, f"{site} ({enzyme})")
    for word, name in list(named.items()):
        named.setdefault(reverse_complement(word), f"{name} on the other strand")
    if homopolymer is not None:
        check_count(f"{owner}.homopolymer", homopolymer)
        for base in BASES:
            run = base * (homopolymer + 1)
            named.setdefault(run, f"{run} (a run of more than {homopolymer})")
    if not named:
        return None
    if not isinstance(tokenizer, ConstraintTokenizer) or not isinstance(tokenizer, StrandTokenizer):
        raise ValueError(
            f"{owner}.avoid must go with a tokenizer of DNA, got a run with "
            f"{type(tokenizer).__name__}; leave it out"
        )
    sets: list[list[list[int]]] = []
    for word in named:
        try:
            allowed = tokenizer.allowed(word)
        except ValueError as error:
            raise ValueError(f"{owner}.avoid {word}: {error}") from error
        sets.append([np.flatnonzero(row).tolist() for row in allowed])
    return WordAutomaton.build(sets, tokenizer.vocab_size, list(named.values()))


class Nearest(NamedTuple):
    """The nearest of some sequences to each of others.

    Attributes:
        distance: Edit distance to it, in bases.
        number: Its number among them.
    """

    distance: Int64[np.ndarray, " N"]
    number: Int64[np.ndarray, " N"]


def edit_distances(first: Sequence[str], second: Sequence[str]) -> Int64[np.ndarray, "N M"]:
    """Compute the edit distance of each pair, on the strand on which the pair is closer.

    Insertions, deletions and substitutions count 1 (Levenshtein 1966). rapidfuzz computes them by
    bit-parallel dynamic programming for whole matrices; edlib aligns one pair at a time.

    Raises:
        ValueError: If rapidfuzz is not installed.
    """
    process = require_extra("rapidfuzz.process", "design", "genomics")
    scorer = require_extra("rapidfuzz.distance", "design", "genomics").Levenshtein.distance
    if not first or not second:
        return np.zeros((len(first), len(second)), dtype=np.int64)
    straight, other = (
        process.cdist(rows, second, scorer=scorer, dtype=np.int32)
        for rows in (first, [reverse_complement(row) for row in first])
    )
    return np.minimum(straight, other).astype(np.int64)


def nearest(
    sequences: Sequence[str],
    training: Sequence[str],
    on_progress: Callable[[int], object] = lambda count: None,
) -> Nearest:
    """Find the training sequence with the smallest edit distance to each sequence.

    Either strand counts, see ``edit_distances``. Of several the first is returned.

    Args:
        sequences: The sequences.
        training: At least one sequence.
        on_progress: Called with the number of training sequences compared since the last call.

    Raises:
        ValueError: If rapidfuzz is not installed.
    """
    distance = np.full(len(sequences), np.iinfo(np.int64).max)
    number = np.zeros(len(sequences), dtype=np.int64)
    step = max(1, _BLOCK_PAIRS // max(1, len(sequences)))
    for start in range(0, len(training), step):
        found = edit_distances(sequences, training[start : start + step])
        place = found.argmin(axis=1)
        value = found[np.arange(len(sequences)), place]
        closer = value < distance
        distance[closer], number[closer] = value[closer], start + place[closer]
        on_progress(found.shape[1])
    return Nearest(distance, number)


def gc_fraction(sequence: str) -> float:
    """Return the fraction of G and C among the known bases; NaN if there is none."""
    known = sum(map(sequence.count, BASES))
    return (sequence.count("G") + sequence.count("C")) / known if known else float("nan")


def longest_run(sequence: str) -> int:
    """Return the length of the longest run of one known base."""
    return max((len(found[0]) for found in re.finditer(r"([ACGT])\1*", sequence)), default=0)


def count_word(pattern: str, sequence: str) -> int:
    """Count the positions at which an IUPAC pattern starts, on the given strand."""
    return len(re.findall(f"(?={_regex(pattern)})", sequence))


def _regex(pattern: str) -> str:
    return "".join(f"[{IUPAC[code]}]" for code in pattern.upper())


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """What every designed sequence must satisfy.

    Forbidden words, restriction sites and long runs are left out while sampling (``automaton``),
    and motifs are put in place by templates. The other constraints filter what was drawn.
    ``passes`` checks all of them, so sequences from elsewhere can be filtered too.

    Attributes:
        gc: Least and greatest fraction of G and C.
        homopolymer: The longest run of one base that is allowed.
        avoid_sites: Names of restriction enzymes whose sites must not occur on either strand.
        avoid: Words with IUPAC codes that must not occur on either strand.
        motif: ``PATTERN`` or ``PATTERN@START``, with IUPAC codes, that must occur on the given
            strand.
        min_distance: Least edit distance to every training sequence, on either strand.
        max_distance: Greatest edit distance to the nearest training sequence.

    Raises:
        ValueError: If a number is out of range, a word is not IUPAC, or there is no such enzyme.
    """

    gc: tuple[float, float] | None = None
    homopolymer: int | None = None
    avoid_sites: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    motif: tuple[str, ...] = ()
    min_distance: int | None = None
    max_distance: int | None = None

    def __post_init__(self) -> None:
        if self.gc is not None and not 0 <= self.gc[0] <= self.gc[1] <= 1:
            raise ValueError(
                "design.gc must be a least and a greatest fraction in [0, 1], got "
                f"{self.gc[0]} {self.gc[1]}; for example --gc 0.3 0.6"
            )
        if self.homopolymer is not None:
            check_count("design.homopolymer", self.homopolymer)
        for name in ("min_distance", "max_distance"):
            if getattr(self, name) is not None:
                check_count(f"design.{name}", getattr(self, name), 0)
        low, high = self.min_distance, self.max_distance
        if low is not None and high is not None and low > high:
            raise ValueError(
                f"design.min_distance must be at most max_distance = {high}, got {low}; lower it"
            )
        for enzyme in self.avoid_sites:
            find_sites("design.avoid_sites", enzyme)
        patterns = [("motif", Motif.parse(text).pattern) for text in self.motif]
        for option, word in [*(("avoid", word) for word in self.avoid), *patterns]:
            bad = next((code for code in word.upper() if code not in IUPAC), None)
            if not word or bad is not None:
                raise ValueError(
                    f"design.{option} must be IUPAC codes of DNA, got {word!r}"
                    + (f" with {bad!r}" if bad else "")
                    + "; write for example GAATTC or TGASTCA"
                )

    def automaton(self, tokenizer: Tokenizer) -> WordAutomaton | None:
        """Build the automaton of what sampling leaves out, see ``forbid``."""
        return forbid(
            "design",
            tokenizer,
            words=self.avoid,
            sites=self.avoid_sites,
            homopolymer=self.homopolymer,
        )

    @property
    def needs_training(self) -> bool:
        """Whether a constraint is on the distance to training sequences."""
        return self.min_distance is not None or self.max_distance is not None

    def passes(
        self, sequences: Sequence[str], nearest: Nearest | None = None
    ) -> dict[str, Bool[np.ndarray, " N"]]:
        """Check sequences.

        Args:
            sequences: Sequences in upper case.
            nearest: Their nearest training sequences, for constraints on the distance.

        Returns:
            For each constraint that is set, by its name, which sequences satisfy it.
        """
        checks: dict[str, Callable[[str], bool]] = {}
        if self.gc is not None:
            low, high = self.gc
            checks["gc"] = lambda sequence: low <= gc_fraction(sequence) <= high
        if self.homopolymer is not None:
            most = self.homopolymer
            checks["homopolymer"] = lambda sequence: longest_run(sequence) <= most
        found_sites = [find_sites("design.avoid_sites", enzyme) for enzyme in self.avoid_sites]
        sites = [site for both in found_sites for site in both]
        for name, words in (("avoid_sites", sites), ("avoid", self.avoid)):
            if words:
                both = [*words, *map(reverse_complement, words)]
                never = re.compile("|".join(map(_regex, both)))
                checks[name] = lambda sequence, never=never: never.search(sequence) is None
        if self.motif:
            wanted = [Motif.parse(text) for text in self.motif]
            checks["motif"] = lambda sequence: all(_holds(motif, sequence) for motif in wanted)
        found = {
            name: np.array([check(sequence) for sequence in sequences], dtype=bool)
            for name, check in checks.items()
        }
        if self.needs_training:
            assert nearest is not None  # the caller asks ``needs_training``
            if self.min_distance is not None:
                found["min_distance"] = nearest.distance >= self.min_distance
            if self.max_distance is not None:
                found["max_distance"] = nearest.distance <= self.max_distance
        return found


def _holds(motif: Motif, sequence: str) -> bool:
    pattern = re.compile(_regex(motif.pattern))
    if motif.start is None:
        return pattern.search(sequence) is not None
    return pattern.match(sequence, motif.start) is not None


def describe_failures(passes: Mapping[str, Bool[np.ndarray, " N"]]) -> str:
    """Say how many sequences failed each constraint, those that failed none left out."""
    failed = {name: int((~held).sum()) for name, held in passes.items()}
    return ", ".join(f"{name} {count:,}" for name, count in failed.items() if count) or "none"
