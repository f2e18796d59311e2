"""Which samplers, estimators, objectives and guidance work with which models: all pairs.

Every pair either runs or gives a one-line error that names the alternatives, before any call of the
network.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from seqdiff.backbones import AutoregressiveTransformer, Backbone, Transformer
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.denoiser.gaussian import GaussianDenoiser
from seqdiff.denoiser.token_schedules import ByContextDenoiser, BySymbolDenoiser
from seqdiff.likelihood import (
    ESTIMATORS,
    BlockBound,
    DiscreteSteps,
    SmallK,
    evaluate,
    usual_estimator,
)
from seqdiff.objectives import (
    Autoregressive,
    BlockNELBO,
    ContinuousNELBO,
    CrossEntropy,
    DiscreteNELBO,
    GaussianVLB,
    MaskedLM,
    Objective,
    TokenScheduleNELBO,
    WeightedMLM,
)
from seqdiff.parameterization import (
    Categorical,
    Full,
    LeaveOneOut,
    MaskColumn,
    Parameterization,
    Score,
    Subs,
    Velocity,
)
from seqdiff.process import (
    Absorbing,
    AbsorbingByContext,
    AbsorbingBySymbol,
    Blockwise,
    Gaussian,
    Hybrid,
    LeftToRight,
    Process,
    Uniform,
)
from seqdiff.rng import CounterNoise
from seqdiff.samplers import (
    BlockClassifierFree,
    BlockSampler,
    ClassifierFree,
    Conjoined,
    ExactClassifierBased,
    FirstOrderClassifierBased,
    Sampler,
    SemiAutoregressiveSampler,
    named_samplers,
)
from seqdiff.samplers.protocol import fitting_samplers
from seqdiff.types import Batch

K, L = 4, 6
SYSTEMS: dict[str, tuple[Process, Parameterization]] = {
    "subs": (Absorbing(K), Subs()),
    "not copied": (Absorbing(K), Subs(carry_over=False)),
    "mask column": (Absorbing(K), MaskColumn()),
    "absorbing score": (Absorbing(K), Score()),
    "uniform loo": (Uniform(K), LeaveOneOut()),
    "uniform full": (Uniform(K), Full()),
    "uniform score": (Uniform(K), Score()),
    "hybrid loo": (Hybrid(K), LeaveOneOut()),
    "hybrid full": (Hybrid(K), Full()),
    "by symbol loo": (AbsorbingBySymbol(K), LeaveOneOut()),
    "by symbol full": (AbsorbingBySymbol(K), Full()),
    "by symbol learned": (AbsorbingBySymbol(K), LeaveOneOut()),
    "by context": (AbsorbingByContext(K), Velocity()),
    "blocks": (Blockwise(Absorbing(K), 3), Subs()),
    "left to right": (LeftToRight(K), LeaveOneOut()),
    "gaussian": (Gaussian(K, dim=8), Categorical()),
}
PREDICTED = {
    "not copied",
    "mask column",
    "uniform loo",
    "uniform full",
    "hybrid loo",
    "hybrid full",
}
SCORED = {"absorbing score", "uniform score"}
BY_SYMBOL = {"by symbol loo", "by symbol full"}
LEARNED = {*BY_SYMBOL, "by symbol learned"}
NOISY = {"uniform loo", "uniform full", "hybrid loo", "hybrid full"}

# Samplers of masked tokens whose reveal times or orders do not depend on the noise of symbols.
ONE_BY_ONE = (
    "cached_ancestral",
    "confidence",
    "entropy",
    "entropy_budget",
    "first_hitting",
    "margin",
    "remask_cap",
    "remask_conf",
    "remask_loop",
    "remask_rescale",
    "threshold",
)

# The table of compatible pairs.
SAMPLERS: dict[str, set[str]] = {
    "ancestral": {"subs", *PREDICTED, *LEARNED, "by context"},
    "tweedie": {"subs", *PREDICTED, *SCORED},
    "tau_leaping": {"subs", *PREDICTED, *SCORED, *LEARNED},
    "predictor_corrector": {"subs", *PREDICTED},
    "gibbs": NOISY,
    **{name: {"subs"} for name in (*ONE_BY_ONE, "semi_autoregressive")},
    "smc": {"subs", "blocks"},
    "block": {"blocks"},
    "left_to_right": {"left to right"},
    "gaussian": {"gaussian"},
}
ESTIMATED: dict[str, set[str]] = {
    **{name: {"subs", "blocks"} for name in ("bernoulli-time", "exact-k", "stratified-k")},
    "small-k": {"subs", "blocks"},
    "random-order-chain": {"subs"},
    "importance-weighted-orders": {"subs"},
    "fixed-order": {"subs"},
    "confident-order": {"subs"},
    "block-bound": {"blocks"},
    "chain-rule": {"left to right"},
    "time-integral": {"subs", *PREDICTED, *SCORED, *LEARNED, "by context"},
    "discrete-steps": {"subs", *PREDICTED, *LEARNED},
    "gaussian-integral": {"gaussian"},
}
OBJECTIVES: dict[type[Objective], set[str]] = {
    ContinuousNELBO: {"subs", *PREDICTED, *SCORED, *BY_SYMBOL},
    DiscreteNELBO: {"subs", *PREDICTED, *BY_SYMBOL},
    TokenScheduleNELBO: {*LEARNED, "by context"},
    CrossEntropy: {"subs", *PREDICTED},
    WeightedMLM: {"subs", "blocks"},
    MaskedLM: {"subs"},
    BlockNELBO: {"blocks"},
    Autoregressive: {"left to right"},
    GaussianVLB: {"gaussian"},
}
GUIDED = {"subs", *NOISY, *LEARNED, "by context"}
GUIDANCE: dict[str, set[str]] = {
    "classifier-free": GUIDED,  # the left-to-right networks have no classes
    "exact classifier": {*GUIDED, "left to right"},
    "first-order classifier": {*GUIDED, "left to right"},
    "both strands": {"subs", *PREDICTED},
    "blocks classifier-free": {"blocks"},
}
# Parameterizations, and whether a network needs the noise level for each.
PARTS: dict[type[Parameterization], dict[type[Process], bool]] = {
    Subs: {Absorbing: False, Blockwise: False},
    MaskColumn: {Absorbing: True},
    Score: {Absorbing: True, Uniform: True},
    LeaveOneOut: {Uniform: True, Hybrid: True, AbsorbingBySymbol: True, LeftToRight: False},
    Full: {Uniform: True, Hybrid: True, AbsorbingBySymbol: True},
    Velocity: {AbsorbingByContext: True},
    Categorical: {Gaussian: True},
}
PROCESSES: list[Process] = list({type(p): p for p, _ in SYSTEMS.values()}.values())
# With a strength for which only the reverse step is known.
STEPS = {"ancestral", "tweedie", "predictor_corrector"}
IN_BLOCKS = {"ancestral", "tweedie", "predictor_corrector", *ONE_BY_ONE}
IN_WINDOWS = {*IN_BLOCKS, "tau_leaping", "semi_autoregressive", "smc"}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


class Counted:
    """A model, and a count of its network calls."""

    def __init__(self, name: str) -> None:
        process, kind = SYSTEMS[name]
        self.calls = 0
        backbone = network(process, kind)
        learned = {
            "gaussian": GaussianDenoiser,
            "by symbol learned": BySymbolDenoiser,
            "by context": ByContextDenoiser,
        }
        self.denoiser = learned.get(name, Denoiser)(backbone, process, kind).eval()
        for module in (backbone.embedding, backbone.blocks[0]):
            module.register_forward_hook(self._count)

    def _count(self, *_: object) -> None:
        self.calls += 1


def network(process: Process, kind: Parameterization) -> Backbone:
    told = process.needs_time or kind.needs_time
    return backbone(process, kind.num_outputs(process), told)


def backbone(process: Process, num_logits: int, told: bool) -> Backbone:
    sizes = {"d_model": 16, "n_layer": 1, "n_heads": 2, "dropout": 0.0}
    ids = {"num_embeddings": K + 1, "num_logits": num_logits}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if isinstance(process, LeftToRight):
            return AutoregressiveTransformer(**sizes, **ids)
        return Transformer(**sizes, **ids, cond_dim=8, num_classes=2, time_conditioned=told)


@pytest.fixture(params=list(SYSTEMS))
def system(request: pytest.FixtureRequest) -> str:
    return request.param


def reward(ids: Tensor) -> Tensor:
    return (ids == 0).double().mean(dim=-1)


def sampler(name: str) -> Sampler:
    options = {
        "semi_autoregressive": {"window": 4, "stride": 2},
        "smc": {"reward": reward, "num_particles": 2},
    }
    cls = named_samplers()[name]
    steps = {"num_steps": 2} if hasattr(cls, "num_steps") else {}
    return cls(**(steps | options.get(name, {})))


def draw(chosen: Sampler, denoiser: Denoiser) -> None:
    """Infilling: one token is given, and another may be one of two symbols."""
    x_init = denoiser.process.blank((2, L))
    x_init[1, 0] = 1
    allowed = torch.ones(2, L, K, dtype=torch.bool)
    allowed[1, 2, :2] = False
    found = chosen.sample(denoiser, x_init, seeds=torch.arange(2), allowed=allowed)
    assert ((found.tokens >= 0) & (found.tokens < K)).all()
    assert int(found.tokens[1, 0]) == 1
    assert int(found.tokens[1, 2]) in (2, 3)
    assert (found.nfe > 0).all()


def refused(counted: Counted, call: Callable[[], object], *names: str) -> None:
    """The call fails with a one-line error that names the model and the alternatives."""
    with pytest.raises(ValueError) as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    assert "must" in message
    assert "got" in message
    for name in names:
        assert name in message, message
    assert counted.calls == 0, "before any network call"


def batch() -> Batch:
    tokens = torch.tensor([[0, 1, 2, 3, 1, 0], [3, 3, 0, 1, 2, 2]])
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[0, 1] = False
    return Batch(tokens, mask, torch.arange(2))


def fits(table: dict[str, set[str]], model: str) -> list[str]:
    return sorted(name for name, models in table.items() if model in models)


def test_tables_are_complete() -> None:
    own = {name for name, cls in named_samplers().items() if cls.__module__.startswith("seqdiff.")}
    assert set(SAMPLERS) == own
    assert set(ESTIMATED) == {kind.name for kind in (*ESTIMATORS, SmallK, BlockBound)}
    for table, base in ((OBJECTIVES, Objective), (PARTS, Parameterization)):
        kinds = base.__subclasses__()
        assert set(table) == {cls for cls in kinds if cls.__module__.startswith("seqdiff.")}


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.name)
def test_parts(process: Process) -> None:
    """Outputs and time input that a process accepts; blocks and prefixes accept none."""
    for kind, processes in PARTS.items():
        fits, parameterization = type(process) in processes, kind()
        build = GaussianDenoiser if isinstance(process, Gaussian) else Denoiser
        told = processes.get(type(process), False)
        if fits:
            outputs = parameterization.num_outputs(process)
            build(backbone(process, outputs, told), process, parameterization)
            with pytest.raises(ValueError, match=f"must emit {outputs} outputs for .*, got 3 from"):
                build(backbone(process, 3, told), process, parameterization)
        else:
            said = rf"parameterization {kind.name} must go with the process .*, got {process.name};"
            with pytest.raises(ValueError, match=said):
                build(backbone(process, K, told), process, parameterization)
        if told:
            with pytest.raises(
                ValueError, match=r"must be told the noise level for the .* a time-"
            ):
                build(backbone(process, outputs, False), process, parameterization)


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.name)
def test_blocks(process: Process) -> None:
    """Only masks: a block with other noise would need its own noise level."""
    if isinstance(process, Absorbing):
        assert Blockwise(process, 3).unknown_id == K
        return
    # bypasses the type checker that watches constructors in tests
    blocks = object.__new__(Blockwise)
    object.__setattr__(blocks, "process", process)
    object.__setattr__(blocks, "block_size", 3)
    with pytest.raises(ValueError, match=rf"process must be absorbing, got {process.name}, whose"):
        blocks.__post_init__()


def test_unchanged_rows_are_remembered_for_networks_without_time_alone() -> None:
    process = Absorbing(K)
    for told in (False, True):
        denoiser = Denoiser(backbone(process, K, told), process).eval()
        cached = sampler("cached_ancestral")
        if not told:
            draw(cached, denoiser)
            continue
        with pytest.raises(
            ValueError, match=r"must ignore time .*, got a time-conditioned one; use"
        ):
            draw(cached, denoiser)


def test_samplers(system: str) -> None:
    counted = Counted(system)
    fitting = fits(SAMPLERS, system)
    named = [name for name in fitting_samplers(counted.denoiser) if name in SAMPLERS]
    assert named == fitting
    for name in SAMPLERS:
        if name in fitting:
            draw(sampler(name), counted.denoiser)
            assert counted.calls > 0
        else:
            counted.calls = 0
            model = counted.denoiser.description
            refused(counted, lambda n=name: draw(sampler(n), counted.denoiser), model, *fitting)


@pytest.mark.parametrize("kind", ["uniform loo", "hybrid full"])
def test_samplers_of_guided_steps(kind: str) -> None:
    counted = Counted(kind)
    guided = ClassifierFree(counted.denoiser, 1, 2.0)
    for name in SAMPLERS:
        counted.calls = 0
        if name in STEPS:
            draw(sampler(name), guided)
        else:
            refused(counted, lambda n=name: draw(sampler(n), guided), "guided process", *STEPS)
    plain = ClassifierFree(counted.denoiser, 1, 1.0)
    for name in fits(SAMPLERS, kind):
        draw(sampler(name), plain)


@pytest.mark.parametrize("name", list(SAMPLERS))
def test_samplers_within_samplers(name: str) -> None:
    """A sampler of blocks or windows accepts the samplers that can fill one."""
    for outer, inside, kind in (
        (lambda inner: BlockSampler(inner), IN_BLOCKS, "blocks"),
        (lambda inner: SemiAutoregressiveSampler(4, 2, inner), IN_WINDOWS, "subs"),
    ):
        counted = Counted(kind)
        if name in inside:
            draw(outer(sampler(name)), counted.denoiser)
        else:
            refused(counted, lambda o=outer: o(sampler(name)), "inner must be", "first_hitting")


def estimator(kind: type):
    if kind is BlockBound:
        return BlockBound(3)
    few = {"evaluations": 2} if hasattr(kind, "evaluations") else {}
    return kind(**few, **({"num_steps": 5} if kind is DiscreteSteps else {}))


def test_estimators(system: str) -> None:
    counted = Counted(system)
    fitting = fits(ESTIMATED, system)
    listed = [name for name in fitting if name not in ("small-k", "block-bound")]
    for kind in (*ESTIMATORS, SmallK, BlockBound):
        counted.calls = 0

        def estimate(kind: type = kind) -> None:
            found = evaluate(counted.denoiser, [batch()], estimator=estimator(kind))
            assert torch.from_numpy(found.nats).isfinite().all()

        if kind.name in fitting:
            estimate()
            assert counted.calls > 0
        else:
            refused(counted, estimate, counted.denoiser.description, *listed)
    assert usual_estimator(counted.denoiser).name in fitting
    found = evaluate(counted.denoiser, [batch()])
    assert torch.from_numpy(found.nats).isfinite().all()


def test_as_many_evaluations_as_wanted_of_the_usual_estimator(system: str) -> None:
    counted = Counted(system)
    if system == "left to right":
        refused(counted, lambda: evaluate(counted.denoiser, [batch()], evaluations=4), "chain-rule")
        return
    found = evaluate(counted.denoiser, [batch()], evaluations=4)
    ends = 0 if system in ("subs", "blocks") else 2
    assert found.nfe.tolist() == [4 + ends] * 2


def test_guided_steps_have_no_bound() -> None:
    counted = Counted("uniform loo")
    guided = ClassifierFree(counted.denoiser, 1, 2.0)
    for kind in ESTIMATORS:
        refused(
            counted, lambda k=kind: evaluate(guided, [batch()], estimator=estimator(k)), "bound"
        )
    refused(counted, lambda: evaluate(guided, [batch()]), "without guidance")
    evaluate(ClassifierFree(counted.denoiser, 1, 1.0), [batch()])
    masked = Counted("subs")
    evaluate(ClassifierFree(masked.denoiser, 1, 2.0), [batch()])


def build(kind: type[Objective]) -> Objective:
    return kind(num_steps=5) if kind is DiscreteNELBO else kind()


def test_objectives(system: str) -> None:
    counted = Counted(system)
    fitting = sorted(kind.__name__ for kind, models in OBJECTIVES.items() if system in models)
    for kind in OBJECTIVES:
        counted.calls = 0
        objective = build(kind)
        if kind.__name__ in fitting:
            objective.check(counted.denoiser)
            terms = objective.terms(counted.denoiser, batch(), CounterNoise(0))
            assert terms.isfinite().all()
            assert terms[0, 1] == 0, "outside the loss mask"
            terms.sum().backward()
            gradients = [p.grad for p in counted.denoiser.parameters() if p.grad is not None]
            assert all(grad.isfinite().all() for grad in gradients)
            assert any(bool(grad.any()) for grad in gradients)
        else:
            model = counted.denoiser.description
            refused(counted, lambda o=objective: o.check(counted.denoiser), model, *fitting)


def linear(tokens: Tensor, t: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
    if tokens.ndim == 2:
        tokens = torch.nn.functional.one_hot(tokens, K + 1).double()
    return tokens[..., 0].sum(dim=-1)


def guide(name: str, denoiser: Denoiser) -> Denoiser:
    build = {
        "classifier-free": lambda: ClassifierFree(denoiser, 1, 2.0),
        "exact classifier": lambda: ExactClassifierBased(denoiser, linear, 2.0),
        "first-order classifier": lambda: FirstOrderClassifierBased(denoiser, linear, 2.0),
        "both strands": lambda: Conjoined(denoiser, [3, 2, 1, 0]),
        "blocks classifier-free": lambda: BlockClassifierFree(denoiser, 1, 2.0),
    }
    return build[name]().eval()


@pytest.mark.parametrize("guidance", list(GUIDANCE))
def test_guidance(system: str, guidance: str) -> None:
    counted = Counted(system)
    if system in GUIDANCE[guidance]:
        usual = {"blocks": "block", "left to right": "left_to_right"}.get(system, "ancestral")
        draw(sampler(usual), guide(guidance, counted.denoiser))
        assert counted.calls > 0
    else:
        refused(counted, lambda: guide(guidance, counted.denoiser))
