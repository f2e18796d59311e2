"""How a run of block diffusion is drawn: how far it looks back, and where a row ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from seqdiff.data.tokenizer import Tokenizer
from seqdiff.run import Run
from seqdiff.samplers import BlockSampler, Sampler


def fit_sampler(sampler: Sampler, run: Run, *, stop: str | None, extrapolate: bool) -> Sampler:
    """Let a block sampler look back as far as the run has learnt to, and stop at a symbol.

    Args:
        sampler: Any; another than a ``BlockSampler`` stays as it is.
        run: The run.
        stop: The symbol, as text.
        extrapolate: Whether to look back further than the run has learnt to.

    Raises:
        ValueError: If the sampler does not fit the run, or there is a symbol to stop at and the
            sampler or the tokenizer does not know what to do with it.
    """
    if not isinstance(sampler, BlockSampler):
        if stop is not None:
            raise ValueError(
                f"sample.stop must be left out for sampler {type(sampler).__name__}, which fills "
                f"rows as long as they are, got {stop!r}; it is for runs of block diffusion"
            )
        return sampler
    size = sampler.check(run.denoiser)
    limits = [run.max_length, None if extrapolate else run.datamodule.context_length]
    known = [limit for limit in limits if limit is not None]
    if sampler.window is None and known and min(known) >= 2 * size:
        sampler = replace(sampler, window=min(known))
    if stop is None:
        return sampler
    if sampler.stop_id is not None:
        raise ValueError(
            f"sample.stop must be left out with --stop-id, got {stop!r} and {sampler.stop_id}; "
            "they mean the same"
        )
    return replace(sampler, stop_id=find_symbol(stop, run.tokenizer))


def find_symbol(text: str, tokenizer: Tokenizer) -> int:
    """Find the id of a single symbol: one that it encodes to, or that decodes to it.

    Args:
        text: The symbol.
        tokenizer: Of a run; special symbols of some are not encoded from their names.

    Raises:
        ValueError: If it is no single symbol.
    """
    every = range(tokenizer.vocab_size) if text else ()
    known = [i for i in every if tokenizer.decode(np.array([i])) == text]
    ids = known if len(known) == 1 else tokenizer.encode(text).tolist()
    if len(ids) == 1 and ids[0] < tokenizer.vocab_size:
        return int(ids[0])
    raise ValueError(
        f"sample.stop must be a single symbol of the run's {type(tokenizer).__name__}, got "
        f"{text!r}, which is {len(ids)}; choose one"
    )
