"""The options that genomics adds to ``seqdiff sample``, and names of columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seqdiff.data import Templates
    from seqdiff.run import Run
    from seqdiff.samplers import Sampler, WordAutomaton


@dataclass(frozen=True, kw_only=True)
class DnaOptions:
    """Options for motifs, words to avoid and strands.

    Attributes:
        motif: PATTERN or PATTERN@START, with IUPAC codes: bases that occur in every sequence,
            starting at START (counted from 0) or at a random position; may be repeated.
        avoid: A word, with IUPAC codes, that no sequence holds on either strand; may be repeated.
        rc_consistent: Predict from both strands, so that a sequence and its reverse complement are
            equally likely; twice the evaluations.
    """

    motif: list[str] | None = None
    avoid: list[str] | None = None
    rc_consistent: bool = False

    def check_infill(self) -> None:
        """Check that no motif is given together with a file of templates.

        Raises:
            ValueError: If a motif is given.
        """
        if self.motif is not None:
            raise ValueError(
                f"sample.motif must be left out with --infill, got {self.motif}; write its "
                "bases into the template"
            )

    def templates(self, run: Run, num: int, length: int) -> Templates | None:
        """Place the motifs.

        Raises:
            ValueError: If they do not fit the run or the length.
        """
        if self.motif is None:
            return None
        from seqdiff.data import Motif, Scaffolds

        motifs = [Motif.parse(text) for text in self.motif]
        return Scaffolds(motifs, num, length, run.tokenizer)

    def words(self, run: Run) -> WordAutomaton | None:
        """Build the automaton of the words to avoid.

        Raises:
            ValueError: If a word is no pattern of the run's tokenizer.
        """
        if not self.avoid:
            return None
        from genomics.design import forbid

        return forbid("sample", run.tokenizer, words=self.avoid)

    def modify(self, run: Run, sampler: Sampler) -> Run:
        """Make the run predict from both strands, if the option is set.

        Raises:
            ValueError: If the sequences have only one strand, or the model or the sampler is
                order-dependent.
        """
        return rc_consistent(run, sampler) if self.rc_consistent else run


def rc_consistent(run: Run, sampler: Sampler) -> Run:
    """Make a sequence and its reverse complement equally likely, at twice the evaluations.

    Args:
        run: The run, not yet guided.
        sampler: How it will be drawn.

    Raises:
        ValueError: If its sequences have only one strand, or the model or the sampler is
            order-dependent.
    """
    from seqdiff.data import StrandTokenizer
    from seqdiff.samplers import Conjoined

    tokenizer = run.tokenizer
    if not isinstance(tokenizer, StrandTokenizer):
        raise ValueError(
            f"sample.rc_consistent must be left out for sequences with one strand, got a run "
            f"with {type(tokenizer).__name__}, which has no complement; leave it out"
        )
    what = {"prefix": "an autoregressive run", "block": "a run of block diffusion"}
    if run.denoiser.context in what:
        raise ValueError(
            f"sample.rc_consistent must be left out for {what[run.denoiser.context]}, which "
            "reads from left to right only; leave it out"
        )
    if sampler.order_dependent:
        raise ValueError(
            f"sample.rc_consistent must go with a sampler that treats both ends alike, got "
            f"{type(sampler).__name__}; leave --sampler out, or choose ancestral"
        )
    return replace(run, denoiser=Conjoined(run.denoiser, tokenizer.complement).eval())


def parse_names(command: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Read the names of columns of values, separate or as a list in brackets.

    Args:
        command: Name of the command, for the message.
        texts: The arguments of ``--signals``.

    Raises:
        ValueError: If there is no name.
    """
    joined = " ".join(texts).strip()
    if joined.startswith("[") and joined.endswith("]"):
        texts = tuple(name.strip() for name in joined[1:-1].split(","))
    if not texts or not all(texts):
        raise ValueError(
            f"{command}.signals must be names of columns, got {joined!r}; write for example "
            "--signals log2_expr, or --signals '[first, second]'"
        )
    return texts
