"""Guarantees of every sampler beside its distribution, with broken samplers that fail."""

import inspect
import itertools
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.process import Absorbing, Uniform
from seqdiff.samplers import (
    AncestralSampler,
    CachedAncestralSampler,
    ConfidenceSampler,
    FirstHittingSampler,
    Sampler,
    SemiAutoregressiveSampler,
    SMCSampler,
    named_samplers,
)
from seqdiff.samplers.canvas import Canvas, Memory
from seqdiff.samplers.grid import GridSampler
from seqdiff.schedules import CosineSquared, Linear
from seqdiff.types import Inputs
from tests.noise_worlds import TableBackbone as NoisyTable
from tests.oracles import LookupBackbone, TableBackbone, UniformBackbone, masked_model

K, L = 3, 5
PROCESS = Absorbing(K, Linear())
MODEL = masked_model(UniformBackbone(K))


def build(cls: type[Sampler]) -> Sampler:
    if cls is SemiAutoregressiveSampler:
        return cls(window=3, stride=2)
    if cls is SMCSampler:
        return cls(reward=lambda tokens: 2.0 * (tokens == 1).sum(dim=-1), num_particles=4)
    return cls(num_steps=12) if issubclass(cls, GridSampler) else cls()


ALL = [
    build(cls)
    for cls in named_samplers().values()
    if cls.__module__.startswith("seqdiff.") and cls.needs.met_by(MODEL)
]
every = pytest.mark.parametrize("sampler", ALL, ids=lambda s: type(s).__name__)


class Neighbours(TableBackbone):
    """Logits from a table of the two neighbours, in any batch; padding counts as the mask."""

    def __init__(self) -> None:
        super().__init__(K)
        generator = torch.Generator().manual_seed(0)
        self.table = torch.randn(K + 1, K + 1, K, dtype=torch.float64, generator=generator)
        self.seen: list[Tensor] = []

    def logits(self, inputs: Inputs) -> Tensor:
        tokens, padding = inputs.tokens, inputs.padding
        self.seen.append(tokens)
        known = tokens if padding is None else torch.where(padding, K, tokens)
        edge = torch.full_like(known[:, :1], K)
        left, right = torch.cat((edge, known[:, :-1]), 1), torch.cat((known[:, 1:], edge), 1)
        return self.table[left, right]


class TimedNeighbours(Neighbours):
    """A network that depends on time: each time has a preferred symbol."""

    def logits(self, inputs: Inputs) -> Tensor:
        assert inputs.t is not None
        phase = 40 * inputs.t[:, None, None] + 2 * torch.pi / K * torch.arange(K)
        return super().logits(inputs) + 3 * phase.cos()


def draw(
    sampler: Sampler,
    x_init: Tensor,
    seed: int | None = 0,
    kind: type[Neighbours] = Neighbours,
    **options,
):
    backbone = kind()
    if seed is not None and "seeds" not in options:
        options["generator"] = torch.Generator().manual_seed(seed)
    output = sampler.sample(masked_model(backbone), x_init, **options)
    return output, backbone


@every
def test_visible_tokens_stay_and_every_mask_is_filled(sampler: Sampler) -> None:
    x_init = torch.tensor([[0, K, 2, K, 1], [K] * 5, [1, 1, 1, 1, 1], [K, 2, 2, 0, K]])
    before = x_init.clone()
    output, _ = draw(sampler, x_init)
    visible = x_init != K
    assert torch.equal(output.tokens[visible], x_init[visible])
    assert (output.tokens < K).all()
    assert torch.equal(x_init, before)


@every
def test_full_rows_cost_nothing_and_nfe_is_what_the_network_saw(sampler: Sampler) -> None:
    x_init = PROCESS.blank((6, L))
    x_init[2] = 1
    output, backbone = draw(sampler, x_init)
    assert int(output.nfe.sum()) == sum(len(tokens) for tokens in backbone.seen)
    assert output.nfe[2] == 0 and (output.nfe[[0, 1, 3, 4, 5]] > 0).all()
    for tokens in backbone.seen:
        assert (tokens == K).any(dim=-1).all(), "a row without masks was evaluated"
    full, backbone = draw(sampler, torch.ones(2, L, dtype=torch.int64))
    assert not backbone.seen and full.nfe.tolist() == [0, 0]


@every
@pytest.mark.parametrize("kind", [Neighbours, TimedNeighbours])
def test_rows_do_not_depend_on_their_batch(sampler: Sampler, kind: type[Neighbours]) -> None:
    """Equal to the bit: alone, reordered, or beside longer rows with padding; at the same times."""
    lengths = torch.tensor([3, 7, 5, 1, 6, 7])
    width, seeds = 7, torch.tensor([5, 2**62, 3, 8, 5, 0])
    padding = torch.arange(width) >= lengths[:, None]
    x_init = PROCESS.blank((6, width))
    x_init[1, 3], x_init[4, 0], x_init[padding] = 2, 1, 0
    whole, _ = draw(sampler, x_init, seeds=seeds, padding=padding, kind=kind)
    order = torch.tensor([4, 0, 3, 5, 2, 1])
    moved, _ = draw(sampler, x_init[order], seeds=seeds[order], padding=padding[order], kind=kind)
    assert torch.equal(moved.tokens, whole.tokens[order])
    assert torch.equal(moved.nfe, whole.nfe[order])
    for row, length in enumerate(lengths.tolist()):
        alone, _ = draw(
            sampler, x_init[row : row + 1, :length], seeds=seeds[row : row + 1], kind=kind
        )
        assert torch.equal(alone.tokens[0], whole.tokens[row, :length])
        assert alone.nfe[0] == whole.nfe[row]


@dataclass(frozen=True)
class BrokenBatchNoise(FirstHittingSampler):
    """Broken twin: one stream of noise for the whole batch."""

    def fill(self, canvas: Canvas) -> None:
        generator = torch.Generator().manual_seed(int(canvas.draws.seeds.sum()))
        noise = torch.rand(canvas.x_t.shape, dtype=torch.float64, generator=generator)
        canvas.write(canvas.masked, (noise * K).long()[canvas.masked])


def test_noise_of_the_whole_batch_would_be_found() -> None:
    with pytest.raises(AssertionError):
        test_rows_do_not_depend_on_their_batch(BrokenBatchNoise(), Neighbours)


def test_times_of_other_rows_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken twins: padding counts as masked, and rows get the times of the first rows."""
    with monkeypatch.context() as patched:
        wide = property(lambda self: 1 - (~self.masked).double().mean(dim=-1))
        patched.setattr(Canvas, "time", wide)
        with pytest.raises(AssertionError):
            test_rows_do_not_depend_on_their_batch(ConfidenceSampler(), TimedNeighbours)
    real = Canvas._network

    def shifted(self, chosen, where, t):
        moved = t.clone()
        moved[chosen] = t[: len(chosen)]
        return real(self, chosen, where, moved)

    monkeypatch.setattr(Canvas, "_network", shifted)
    with pytest.raises(AssertionError):
        test_rows_do_not_depend_on_their_batch(FirstHittingSampler(), TimedNeighbours)


@every
def test_the_generator_seeds_the_rows(sampler: Sampler) -> None:
    x_init = PROCESS.blank((20, L))
    first, second, other = (draw(sampler, x_init, seed)[0].tokens for seed in (1, 1, 2))
    assert torch.equal(first, second) and not torch.equal(first, other)
    fewer = draw(sampler, x_init[:7], 1)[0].tokens
    assert torch.equal(fewer, first[:7]), "a smaller batch is the start of a larger one"
    assert len({tuple(row) for row in first.tolist()}) > 10, "rows have noise of their own"
    same = draw(sampler, x_init[:2], None, seeds=torch.tensor([4, 4]))[0].tokens
    assert torch.equal(same[0], same[1])


@every
def test_callback_counts_the_steps_and_sees_the_tokens(sampler: Sampler) -> None:
    seen: list[Tensor] = []
    steps: list[int] = []

    def keep(step: int, x_t: Tensor) -> None:
        assert 1 <= step <= len(seen) + 1
        seen[step - 1 :] = [x_t.clone()]
        steps.append(step)

    x_init = PROCESS.blank((4, L))
    x_init[:, 1] = 2
    output, _ = draw(sampler, x_init, callback=keep)
    assert steps == list(range(1, len(seen) + 1)) or isinstance(sampler, SMCSampler)
    assert torch.equal(seen[-1], output.tokens)
    assert all((x[:, 1] == 2).all() for x in seen)
    hides = any(word in type(sampler).__name__ for word in ("Remask", "Corrector"))
    changes = any(
        bool((later != earlier)[earlier != K].any()) for earlier, later in itertools.pairwise(seen)
    )
    assert not changes or hides


@every
def test_an_empty_batch_is_no_error(sampler: Sampler) -> None:
    for shape in ((0, L), (2, 0)):
        output, backbone = draw(sampler, PROCESS.blank(shape))
        assert output.tokens.shape == shape and not backbone.seen


@pytest.mark.parametrize("schedule", [Linear(), CosineSquared()], ids=repr)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_p": 0.9}], ids=str)
def test_cached_ancestral_is_ancestral_bit_for_bit(schedule, options) -> None:
    x_init = PROCESS.blank((50, L))
    x_init[0] = torch.tensor([0, 1, K, 1, 2])
    plain, cached, jumps = (
        sampler.sample(
            masked_model(LookupBackbone(K, L, seed=0), schedule),
            x_init,
            generator=torch.Generator().manual_seed(0),
        )
        for sampler in (
            AncestralSampler(100, **options),
            CachedAncestralSampler(100, **options),
            FirstHittingSampler(**options),
        )
    )
    assert torch.equal(plain.tokens, cached.tokens)
    assert (cached.nfe <= (x_init == K).sum(dim=-1)).all()
    assert cached.nfe.sum() * 10 < plain.nfe.sum()
    # With very small steps, nearly all of which hold one token at most, first-hitting draws the
    # same rows.
    alone = cached.nfe == (x_init == K).sum(dim=-1)
    assert alone.sum() > 25 and torch.equal(jumps.tokens[alone], cached.tokens[alone])


def test_cache_compares_integers() -> None:
    """126336 and 126337 are equal for ``torch.allclose``; the cache must distinguish them."""
    old, new = torch.tensor([[126336], [7]]), torch.tensor([[126337], [7]])
    assert torch.allclose(old[0], new[0])
    assert Memory(old, torch.zeros_like(old)).stale(new).tolist() == [True, False]


def test_a_cache_that_forgets_to_look_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Memory.stale
    monkeypatch.setattr(Memory, "stale", lambda self, x: real(self, x) & (self.tokens < 0).any(-1))
    with pytest.raises(AssertionError):
        test_cached_ancestral_is_ancestral_bit_for_bit(Linear(), {})


def test_no_sampler_is_more_than_two_classes_below_the_base() -> None:
    for cls in named_samplers().values():
        if cls.__module__.startswith("seqdiff."):
            assert sum(issubclass(base, Sampler) for base in cls.__mro__) <= 3, cls


def test_every_sampler_has_a_line_that_says_what_it_does() -> None:
    assert len(ALL) == 17
    for sampler in ALL:
        first = (inspect.getdoc(type(sampler)) or "").splitlines()[0]
        assert first.endswith(".") and len(first) <= 100


@every
def test_a_single_step_and_the_smallest_temperature_fill_every_position(sampler: Sampler) -> None:
    denoiser = masked_model(Neighbours())
    options: dict[str, object] = {"num_steps": 1} if isinstance(sampler, GridSampler) else {}
    if hasattr(sampler, "temperature"):
        options["temperature"] = 1e-320
    drawn = replace(sampler, **options).sample(
        denoiser, PROCESS.blank((4, L)), generator=torch.Generator().manual_seed(0)
    )
    assert (drawn.tokens < K).all()


@every
@pytest.mark.parametrize("options", [{"temperature": 0.01}, {"top_k": 1}, {"top_p": 0.5}], ids=str)
def test_every_sampler_reshapes_what_it_draws(sampler: Sampler, options: dict) -> None:
    """Only the most likely allowed symbol of 3 remains; without options the sampler differs.

    At temperature 0.01 other symbols have a probability of e^-100.
    """

    class Fixed(TableBackbone):
        def logits(self, inputs):
            return torch.tensor([0.0, 2.0, 1.0], dtype=torch.float64).expand(
                *inputs.tokens.shape, K
            )

    allowed = torch.ones(20, L, K, dtype=torch.bool)
    allowed[:, 2, 1] = False
    semi = isinstance(sampler, SemiAutoregressiveSampler)
    shaped = replace(sampler, **({"inner": FirstHittingSampler(**options)} if semi else options))
    for one, same in ((shaped, True), (sampler, False)):
        drawn = one.sample(
            masked_model(Fixed(K)),
            PROCESS.blank((20, L)),
            allowed=allowed,
            seeds=torch.arange(20),
        )
        assert bool((drawn.tokens == torch.tensor([1, 1, 2, 1, 1])).all()) == same


@every
def test_a_network_that_gives_nan_is_named(sampler: Sampler) -> None:
    class Broken(TableBackbone):
        def logits(self, inputs):
            return torch.full((*inputs.tokens.shape, K), torch.nan, dtype=torch.float64)

    with pytest.raises(ValueError, match="got log-probability nan at row"):
        sampler.sample(masked_model(Broken(K)), PROCESS.blank((2, L)), generator=torch.Generator())


@pytest.mark.parametrize(
    "cls",
    [c for c in named_samplers().values() if Uniform in c.needs.processes or c is AncestralSampler],
)
def test_a_network_that_gives_nan_is_named_with_other_noise(cls: type[Sampler]) -> None:
    network = NoisyTable(lambda z, t: torch.full((*z.shape, K), torch.nan), K)
    denoiser = Denoiser(network, Uniform(K))
    with pytest.raises(ValueError, match="got log-probability nan at row"):
        cls(num_steps=3).sample(denoiser, PROCESS.blank((2, L)), seeds=torch.arange(2))
