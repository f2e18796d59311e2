"""Turn a run into a model of one of its labels, or of both strands alike."""

from __future__ import annotations

from dataclasses import replace

from seqdiff.data.tokenizer import StrandTokenizer
from seqdiff.run import Run
from seqdiff.samplers import BlockClassifierFree, ClassifierFree, Conjoined, Sampler


def guide(command: str, run: Run, label: str | None, gamma: float | None = None) -> Run:
    """Give the run as a model of the sequences of a label.

    Args:
        command: Who asks, for the messages.
        run: The run.
        label: Name of the label; ``None`` samples without one.
        gamma: Strength of classifier-free guidance; ``None`` means 1, no more than the label.

    Raises:
        ValueError: If the run has no such label, or was not trained for what is asked.
    """
    known = run.datamodule.labels
    if label is not None and known is None:
        raise ValueError(
            f"{command}.label must be left out for a run without labels, got {label!r}; train "
            "on data with labels (data.labels, data.label_file)"
        )
    if label is not None and known is not None and label not in known:
        raise ValueError(
            f"{command}.label must be one of {', '.join(known)}, got {label!r}; "
            "the model never saw it"
        )
    if label is None and gamma is not None:
        raise ValueError(
            f"{command}.guidance must come with a label, got {gamma} without; add --label"
        )
    strength = 1.0 if gamma is None else gamma
    if known is not None and run.config.label_dropout == 0 and (label is None or strength != 1):
        raise ValueError(
            f"{command}.label must be given, with guidance 1, for a run trained with label_dropout "
            f"0, got label {label} and guidance {strength}: it cannot do without a label; give "
            f"--label {known[0]}, or train with label_dropout 0.1"
        )
    if label is None or known is None:
        return run
    model, number = run.denoiser, known.index(label)
    if strength == 0:
        return run
    if model.law == "score" or model.reads_embeddings:
        if strength != 1:
            raise ValueError(
                f"{command}.guidance must be 0 or 1 for the {model.description}, of which other "
                f"strengths are not defined, got {strength}; leave it out"
            )
        return replace(run, denoiser=model.given_label(number).eval())
    if model.context == "block":
        return replace(run, denoiser=BlockClassifierFree(model, number, strength).eval())
    return replace(run, denoiser=ClassifierFree(model, number, strength).eval())


def choose_labels(command: str, run: Run, *, given: bool) -> bool | None:
    """Decide whether the rows of a split are evaluated given their labels.

    Args:
        command: Who asks, for the messages.
        run: The run.
        given: Whether that is asked for.

    Returns:
        ``None`` for a run without labels.

    Raises:
        ValueError: If the run has no labels to give, or cannot do without them.
    """
    if run.datamodule.labels is None:
        if given:
            raise ValueError(
                f"{command}.given_labels must be left out for a run without labels, got it for "
                f"{run.directory}; train on data with labels (data.labels, data.label_file)"
            )
        return None
    if not given and run.config.label_dropout == 0:
        raise ValueError(
            f"{command}.given_labels must be set for a run trained with label_dropout 0, which "
            f"cannot do without labels, got {run.directory} without it; add --given_labels, or "
            "train with label_dropout 0.1"
        )
    return given


def conjoin(command: str, run: Run, sampler: Sampler) -> Run:
    """Give the run as a model for which a sequence and its other strand are equally likely.

    Args:
        command: Who asks, for the messages.
        run: The run, not yet guided.
        sampler: How it will be drawn.

    Raises:
        ValueError: If its sequences have one strand only, or the model or the sampler prefers a
            direction.
    """
    tokenizer = run.tokenizer
    if not isinstance(tokenizer, StrandTokenizer):
        raise ValueError(
            f"{command}.rc_consistent must be left out for sequences with one strand, got a run "
            f"with {type(tokenizer).__name__}, which has no complement; leave it out"
        )
    what = {"prefix": "an autoregressive run", "block": "a run of block diffusion"}
    if run.denoiser.context in what:
        raise ValueError(
            f"{command}.rc_consistent must be left out for {what[run.denoiser.context]}, which "
            "reads from left to right only; leave it out"
        )
    if sampler.directed:
        raise ValueError(
            f"{command}.rc_consistent must go with a sampler that treats both ends alike, got "
            f"{type(sampler).__name__}; leave --sampler out, or choose ancestral"
        )
    return replace(run, denoiser=Conjoined(run.denoiser, tokenizer.complement).eval())
