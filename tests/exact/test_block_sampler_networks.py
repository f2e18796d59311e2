"""The block diffusion sampler on our networks: caches change no token."""

import pytest
import torch
from torch import Tensor

from seqdiff.backbones import Backbone, BlockMamba, Transformer
from seqdiff.denoiser.discrete import Denoiser, Prefix
from seqdiff.process import Absorbing, Blockwise
from seqdiff.samplers import BlockClassifierFree, BlockSampler, FirstHittingSampler
from seqdiff.schedules import Linear
from seqdiff.types import Inputs
from tests.block_worlds import RecomputingCache
from tests.oracles import TableBackbone

K, L, SIZE, CLASSES = 5, 22, 4, 3
PROCESS = Blockwise(Absorbing(K, Linear()), SIZE)


def make(name: str) -> Backbone:
    """Random weights, large enough that every token depends on earlier ones."""
    torch.manual_seed(1)
    sizes = {"num_embeddings": K + 1, "num_logits": K, "num_classes": CLASSES}
    if name == "transformer":
        network = Transformer(16, 2, 2, max_length=32, dropout=0.0, **sizes)
    else:
        network = BlockMamba(16, 2, backend="reference", **sizes)
    with torch.no_grad():
        for weight in network.parameters():
            if weight.dim() > 1:
                weight.copy_(torch.randn_like(weight) * 1.5 / weight.shape[-1] ** 0.5)
    return network.double().eval()


class Recomputing(TableBackbone):
    """A network whose cache keeps tokens only."""

    reads_blocks = True

    def __init__(self, network: Backbone) -> None:
        super().__init__(K)
        self.network, self.num_classes = network, CLASSES
        self.block_logits = network.block_logits

    def logits(self, inputs: Inputs) -> Tensor:
        return self.network(inputs)

    def block_cache(
        self, batch_size, block_size, *, window=None, label=None, signal=None
    ) -> RecomputingCache:
        nothing = torch.empty((batch_size, 0), dtype=torch.int64)
        return RecomputingCache(self.network, block_size, nothing, label)


def rows() -> Tensor:
    """Blank rows, prompts of several lengths, and tokens to the right."""
    x_init = torch.full((12, L), K)
    given = torch.randint(K, (12, L), generator=torch.Generator().manual_seed(0))
    for row, length in enumerate([0, 0, 3, 4, 9, 12, 13, 21, 8, 1]):
        x_init[row, :length] = given[row, :length]
    x_init[10, 11:17] = given[10, 11:17]
    x_init[11, 0::3] = given[11, 0::3]
    return x_init


def sample(network: Backbone, guided: float | None, **options) -> tuple[Tensor, Tensor]:
    denoiser = Denoiser(network, PROCESS)
    if guided is not None:
        denoiser = BlockClassifierFree(denoiser, 1, guided)
    sampler = BlockSampler(FirstHittingSampler(), **options)
    found = sampler.sample(denoiser.eval(), rows(), seeds=torch.arange(12))
    return found.tokens, found.nfe


@pytest.mark.parametrize(
    "guided", [None, *(pytest.param(g, marks=pytest.mark.slow) for g in (1.0, 2.0))]
)
@pytest.mark.parametrize("name", ["transformer", "mamba"])
def test_what_a_network_keeps_changes_no_token(name: str, guided: float | None) -> None:
    """Against a network that reads the whole row again; rows stop at different positions.

    The logits differ by rounding in float64, which changes one token in 1e12 draws.
    """
    network = make(name)
    whole = None
    for options in ({}, {"stop_id": 2}, {"min_entropy": 0.8, "entropy_window": 6}):
        kept, spent = sample(network, guided, **options)
        again, same = sample(Recomputing(network), guided, **options)
        assert torch.equal(kept, again) and torch.equal(spent, same)
        whole = kept if whole is None else whole
    blind, _ = sample(network, guided, window=2 * SIZE)
    assert torch.equal(blind, whole) == (name == "mamba"), "a state has no window"
    assert torch.equal(blind[:, : 2 * SIZE], whole[:, : 2 * SIZE])


@pytest.mark.parametrize("name", ["transformer", "mamba"])
def test_rows_do_not_depend_on_their_batch(name: str) -> None:
    network, seeds = make(name), torch.arange(12)
    sampler, denoiser = BlockSampler(stop_id=2), Denoiser(network, PROCESS)
    whole = sampler.sample(denoiser, rows(), seeds=seeds)
    for row in range(12):
        one = slice(row, row + 1)
        alone = sampler.sample(denoiser, rows()[one], seeds=seeds[one])
        assert torch.equal(alone.tokens[0], whole.tokens[row])
        assert alone.nfe[0] == whole.nfe[row]


def test_a_row_may_be_longer_than_the_context() -> None:
    """It starts with the tokens of a shorter row, and then the window moves."""
    denoiser = Denoiser(make("transformer"), PROCESS)
    long, short = (
        BlockSampler().sample(denoiser, PROCESS.blank((3, n)), seeds=torch.arange(3))
        for n in (4 * 32, 60)
    )
    assert (long.tokens < K).all() and torch.equal(long.tokens[:, :60], short.tokens)


@pytest.mark.parametrize(("window", "behind"), [(2 * SIZE, SIZE), (14, 2 * SIZE), (20, 4 * SIZE)])
def test_a_window_counts_the_block_itself(window: int, behind: int) -> None:
    """A network of one layer, whose keys are single tokens, sees exactly that far."""
    torch.manual_seed(0)
    sizes = {"num_embeddings": K + 1, "num_logits": K, "max_length": 64, "dropout": 0.0}
    network = Transformer(16, 1, 2, **sizes).double().eval()
    with torch.no_grad():
        for weight in network.parameters():
            if weight.dim() > 1:
                weight.copy_(torch.randn_like(weight) / weight.shape[-1] ** 0.5)
    asked: list[Tensor] = []

    class Watching(Prefix):
        def log_probs(self, x_t: Tensor, where: Tensor) -> Tensor:
            asked.append(super().log_probs(x_t, where))
            return asked[-1]

    class Watched(Denoiser):
        def start(self, batch_size, *, window=None, label=None, signal=None) -> Prefix:
            inner = super().start(batch_size, window=window, label=label, signal=signal)
            return Watching(inner.denoiser, inner.cache)

    first = 6 * SIZE  # of the only block to fill
    prompt = torch.randint(K, (1, first), generator=torch.Generator().manual_seed(3))
    distributions = []
    for place in (None, first - behind, first - behind - 1):
        given = prompt.clone()
        if place is not None:
            given[0, place] = (given[0, place] + 1) % K
        blank = torch.cat((given, torch.full((1, SIZE), K)), dim=1)
        sampler, seeds = BlockSampler(window=window), torch.zeros(1, dtype=torch.int64)
        sampler.sample(Watched(network, PROCESS), blank, seeds=seeds)
        distributions.append(asked[0])
        asked.clear()
    assert not torch.equal(distributions[0], distributions[1]), "the first token within the window"
    assert torch.equal(distributions[0], distributions[2]), "the last token beyond it"


@pytest.mark.parametrize("name", ["transformer", "mamba"])
def test_a_prefix_is_told_the_label(name: str) -> None:
    model, label = Denoiser(make(name), PROCESS), torch.tensor([0, 2])
    x0 = torch.randint(K, (2, 2 * SIZE), generator=torch.Generator().manual_seed(5))
    x_t = torch.cat((x0[:, :SIZE], torch.full((2, SIZE), K)), dim=1)
    where = x_t == K
    with torch.no_grad():
        told, untold = (model.log_probs(Inputs(x_t, label=given), where) for given in (label, None))
    prefix = model.start(2, label=label)
    prefix.append(x0[:, :SIZE])
    found = prefix.take(torch.tensor([1, 0])).log_probs(x_t[:, SIZE:], where[:, SIZE:])
    torch.testing.assert_close(found.view(2, SIZE, K).flip(0).flatten(0, 1), told)
    assert not torch.allclose(told, untold)
