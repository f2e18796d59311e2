"""``seqdiff models``."""

from __future__ import annotations


def models() -> None:
    """List the packaged models, which commands take in place of a run directory.

    A line has the name, what the model draws, its signals with their range in training, and the
    size of its weights.
    """
    from seqdiff.run import load, packaged_models
    from seqdiff.training import WEIGHTS_NAME

    for name, (folder, about) in packaged_models().items():
        run = load(folder)
        embedding = run.denoiser.backbone.signal_embedding
        ranges = [] if embedding is None else embedding.range.T.tolist()
        signals = [
            f"{signal} from {low:.2f} to {high:.2f}"
            for signal, (low, high) in zip(run.datamodule.signals or (), ranges, strict=True)
        ]
        size = (folder / WEIGHTS_NAME).stat().st_size / 1e6
        print("; ".join([f"{name}: {about}", *signals, f"{size:.1f} MB"]))
