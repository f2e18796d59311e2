"""Every sampler gives each row, and each position of it, its own signal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from seqdiff.denoiser import Denoiser, GaussianDenoiser
from seqdiff.parameterization import (
    Full,
    MaskColumn,
    Parameterization,
    Score,
    scores_from_distribution,
)
from seqdiff.process import (
    Absorbing,
    Blockwise,
    DiscreteProcess,
    Gaussian,
    Hybrid,
    LeftToRight,
    Uniform,
)
from seqdiff.samplers import (
    BlockClassifierFree,
    BlockSampler,
    ClassifierFree,
    FirstHittingSampler,
    Sampler,
    SMCSampler,
    named_samplers,
)
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.protocol import sampler_name
from seqdiff.samplers.smc import Swarm
from seqdiff.types import Inputs
from tests.block_worlds import BlockWorld
from tests.exact.test_sampler_contract import build

K, L = 4, 7
SURE, SOFT = 200.0, 2.0


class Telltale(BlockWorld):
    """Predicts at every position the symbol that the signal names; uniform if it is unknown.

    Args:
        process: The process, for outputs that are scores.
        kind: The parameterization; ``None`` for logits.
        strength: Of the prediction; with the soft one neighbours matter too.
    """

    num_signals = 1

    def __init__(
        self,
        process: DiscreteProcess | None = None,
        kind: Parameterization | None = None,
        strength: float = SURE,
    ) -> None:
        super().__init__(K if process is None or kind is None else kind.num_outputs(process))
        self.process, self.kind, self.strength = process, kind, strength
        self.time_conditioned = process is not None
        generator = torch.Generator().manual_seed(0)
        self.table = torch.randn(K + 1, K, dtype=torch.float64, generator=generator)

    def logits(self, inputs: Inputs) -> Tensor:
        tokens, signal = inputs.tokens, inputs.signal
        shape = (*tokens.shape, 1)
        signal = torch.full(shape, torch.nan) if signal is None else signal
        signal = (signal if signal.dim() == 3 else signal[:, None]).expand(shape)[..., 0]
        named = torch.nn.functional.one_hot(signal.nan_to_num().round().long() % K, K)
        logits = self.strength * (named * ~signal.isnan()[..., None]).double()
        if self.strength == SOFT and not self.causal:
            before = torch.cat((torch.full_like(tokens[:, :1], K), tokens[:, :-1]), dim=1)
            logits = logits + self.table[before.clamp_max(K)]
        log_loo = logits.log_softmax(dim=-1)
        if isinstance(self.kind, MaskColumn):
            return torch.nn.functional.pad(log_loo, (0, 1), value=-torch.inf)
        if not isinstance(self.kind, Score):
            return log_loo
        assert self.process is not None and inputs.t is not None
        times = inputs.t.double()[:, None].expand(tokens.shape).clamp_max(1 - 1e-9)
        scores = scores_from_distribution(log_loo, tokens, times, self.process)
        scores = scores.nan_to_num(neginf=-1e300, posinf=1e300)
        return scores - Score().read(torch.zeros_like(scores), tokens, times, self.process)

    def block_logits(
        self, inputs: Inputs, x0: Tensor, block_size: int, where: Tensor | None = None
    ) -> Tensor:
        logits = self.logits(inputs)
        return logits if where is None else logits[where]


class Causal(Telltale):
    causal = True


def gaussian(strength: float) -> Denoiser:
    network = Telltale(None, None, strength)
    network.time_conditioned = True
    process = Gaussian(K, 6)
    torch.manual_seed(0)
    return GaussianDenoiser(network, process).double().eval()


def noisy(
    process: DiscreteProcess, kind: Parameterization | None = None
) -> Callable[[float], Denoiser]:
    return lambda strength: Denoiser(Telltale(process, kind, strength), process, kind).eval()


MODELS: dict[str, Callable[[float], Denoiser]] = {
    "masks": lambda strength: Denoiser(Telltale(strength=strength), Absorbing(K)),
    "blocks": lambda strength: Denoiser(Telltale(strength=strength), Blockwise(Absorbing(K), 2)),
    "causal": lambda strength: Denoiser(Causal(strength=strength), LeftToRight(K)),
    "mask-column": noisy(Absorbing(K), MaskColumn()),
    "mask-scores": noisy(Absorbing(K), Score()),
    "uniform": noisy(Uniform(K)),
    "uniform-full": noisy(Uniform(K), Full()),
    "uniform-scores": noisy(Uniform(K), Score()),
    "hybrid": noisy(Hybrid(K, 0.3)),
    "gaussian": gaussian,
}
KINDS = [cls for cls in named_samplers().values() if cls.__module__.startswith("seqdiff.")]
PAIRS = [
    pytest.param(cls, name, id=f"{sampler_name(cls)}-{name}")
    for cls in KINDS
    for name, model in MODELS.items()
    if cls.needs.met_by(model(SURE))
]
every = pytest.mark.parametrize(("cls", "name"), PAIRS)
VECTOR = torch.tensor([[2.0], [0.0], [3.0], [1.0], [2.0], [0.0]])
TRACK = ((torch.arange(6)[:, None] + torch.arange(L) * 3) % K).float()[..., None]
SEEDS = torch.tensor([5, 2**62, 3, 8, 5, 0])


def named(signal: Tensor) -> Tensor:
    """The symbols that a signal names, ``[B, L]``."""
    return (signal if signal.dim() == 3 else signal[:, None]).expand(-1, L, 1)[..., 0].long()


def draw(
    sampler: Sampler, model: Denoiser, signal: Tensor | None, rows: Tensor | None = None
) -> Tensor:
    """Draw six rows, or some of them; one has no unknown token, and one has several known ones."""
    rows = torch.arange(6) if rows is None else rows
    x_init = torch.full((6, L), model.process.unknown_id)
    x_init[2] = 1
    x_init[3, :3] = 2
    given = None if signal is None else signal[rows]
    return sampler.sample(model, x_init[rows], seeds=SEEDS[rows], signal=given).tokens


def wrong(tokens: Tensor, signal: Tensor) -> int:
    """Tokens that are not those that the signal names, where they were drawn."""
    drawn = torch.ones_like(tokens, dtype=torch.bool)
    drawn[2], drawn[3, :3] = False, False
    assert (tokens[2] == 1).all() and (tokens[3, :3] == 2).all(), "given tokens stay"
    return int((tokens != named(signal))[drawn].sum())


def test_no_sampler_is_left_out() -> None:
    assert {param.values[0] for param in PAIRS} == set(KINDS) and len(KINDS) > 15


@every
@pytest.mark.parametrize("signal", [VECTOR, TRACK], ids=["vector", "track"])
def test_rows_and_positions_have_their_own_values(cls, name: str, signal: Tensor) -> None:
    model, sampler = MODELS[name](SURE), build(cls)
    assert wrong(draw(sampler, model, signal), signal) == 0


@every
def test_rows_do_not_depend_on_their_batch(cls, name: str) -> None:
    """Equal to the bit: in another order, and alone; with a prediction that leaves a choice."""
    model, sampler = MODELS[name](SOFT), build(cls)
    whole = draw(sampler, model, TRACK)
    for rows in ([4, 0, 3, 5, 2, 1], [4], [0, 1]):
        order = torch.tensor(rows)
        assert torch.equal(draw(sampler, model, TRACK, order), whole[order])


@pytest.mark.parametrize("signal", [VECTOR, TRACK], ids=["vector", "track"])
@pytest.mark.parametrize("gamma", [0.5, 3.0])
@pytest.mark.parametrize("name", ["masks", "blocks", "uniform"])
def test_guided_rows_have_their_own_values(name: str, gamma: float, signal: Tensor) -> None:
    model = MODELS[name](SURE)
    guide = BlockClassifierFree if name == "blocks" else ClassifierFree
    sampler = build(named_samplers()["block" if name == "blocks" else "ancestral"])
    assert wrong(draw(sampler, guide(model, None, gamma), signal), signal) == 0


@pytest.mark.parametrize("inner", ["first_hitting", "ancestral", "confidence"])
@pytest.mark.parametrize("signal", [VECTOR, TRACK], ids=["vector", "track"])
def test_samplers_within_samplers(inner: str, signal: Tensor) -> None:
    """With windows that forget, stop symbols that make rows leave, and rows of other lengths."""
    model, inside = MODELS["blocks"](SURE), build(named_samplers()[inner])
    for options in ({}, {"window": 4}, {"min_entropy": 0.0}):
        sampler = BlockSampler(inner=inside, **options)
        assert wrong(draw(sampler, model, signal), signal) == 0
    padding = torch.arange(L) >= torch.tensor([[7], [3], [7], [5], [4], [1]])
    x_init = torch.full((6, L), K).masked_fill(padding, 0)
    found = BlockSampler(inner=inside).sample(
        model, x_init, seeds=SEEDS, padding=padding, signal=signal
    )
    assert torch.equal(found.tokens[~padding], named(signal)[~padding])
    whole = MODELS["masks"](SURE)
    found = inside.sample(whole, x_init, seeds=SEEDS, padding=padding, signal=signal)
    assert torch.equal(found.tokens[~padding], named(signal)[~padding])


@pytest.mark.parametrize("signal", [VECTOR, TRACK], ids=["vector", "track"])
@pytest.mark.parametrize("resampling", ["systematic", "multinomial"])
def test_particles_keep_the_signal_of_their_row(
    signal: Tensor, resampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reward that kills most particles makes the others take their places."""

    def reward(tokens: Tensor) -> Tensor:
        return 4.0 * ((tokens.sum(dim=-1) % 3) == 0).double()

    sampler = SMCSampler(reward=reward, num_particles=6, ess_threshold=1.0, resampling=resampling)
    model = MODELS["masks"](SURE)
    assert wrong(draw(sampler, model, signal), signal) == 0
    x_init = torch.full((2, L), K)
    seen: list[Tensor] = []
    soft = MODELS["masks"](SOFT)
    plain = soft.backbone.logits

    def watch(inputs: Inputs) -> Tensor:
        assert inputs.signal is not None
        seen.append(inputs.signal)
        return plain(inputs)

    soft.backbone.logits = watch
    sampler.sample(soft, x_init, seeds=SEEDS[:2], signal=signal[:2])
    assert seen and all(torch.equal(part, signal[:2].repeat_interleave(6, dim=0)) for part in seen)
    real = Swarm.spread.__func__

    def mixed(cls: type[Swarm], canvas: Canvas, *options: object) -> Swarm:
        """Broken twin: particles side by side have the signals of all rows in turn."""
        swarm = real(cls, canvas, *options)
        count = len(swarm.canvas.x_t) // len(canvas.x_t)
        repeated = canvas.signal.repeat(count, *[1] * (canvas.signal.dim() - 1))
        return replace(swarm, canvas=replace(swarm.canvas, signal=repeated))

    monkeypatch.setattr(Swarm, "spread", classmethod(mixed))
    assert wrong(draw(sampler, model, signal), signal) > 0


def test_broken_canvases_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twins that give rows the values of the first rows, and windows those of the first window."""
    with monkeypatch.context() as patched:
        ask = Canvas._ask

        def first(self: Canvas, chosen: Tensor, where: Tensor, t: Tensor):
            inputs, asked = ask(self, chosen, where, t)
            return replace(inputs, signal=self.signal[: len(chosen)]), asked

        patched.setattr(Canvas, "_ask", first)
        with pytest.raises(AssertionError):
            test_rows_and_positions_have_their_own_values(FirstHittingSampler, "masks", VECTOR)
    window = Canvas.window

    def unmoved(self: Canvas, start: int, end: int) -> Canvas:
        part = window(self, start, end)
        return part if self.signal is None else replace(part, signal=self.signal[:, : end - start])

    monkeypatch.setattr(Canvas, "window", unmoved)
    semi = named_samplers()["semi_autoregressive"]
    with pytest.raises(AssertionError):
        test_rows_and_positions_have_their_own_values(semi, "masks", TRACK)


@pytest.mark.usefixtures("unchecked")
def test_signals_that_do_not_fit_raise_before_any_network_call() -> None:
    model, x_init = MODELS["masks"](SURE), torch.full((6, L), K)
    model.backbone.logits = None  # type: ignore[assignment]
    for signal in (VECTOR[:2], torch.zeros(6, 2), TRACK[:, :3], VECTOR[:, 0]):
        with pytest.raises(ValueError, match=r"^Telltale\.signal must have shape \(6, 1\), or \(6"):
            FirstHittingSampler().sample(model, x_init, seeds=SEEDS, signal=signal)
    model.backbone.num_signals = None
    with pytest.raises(ValueError, match=r"^Telltale\.signal must be None for a network without"):
        FirstHittingSampler().sample(model, x_init, seeds=SEEDS, signal=VECTOR)
