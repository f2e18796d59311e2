"""Invalid requests and settings of samplers: one-line errors before the network is called."""

import re

import numpy as np
import pytest
import torch

from seqdiff.samplers import (
    AncestralSampler,
    BlockSampler,
    EntropySampler,
    FirstHittingSampler,
    PredictorCorrectorSampler,
    RemaskCapSampler,
    SemiAutoregressiveSampler,
    named_samplers,
)
from seqdiff.samplers.protocol import check_request
from tests.exact.test_sampler_contract import ALL, PROCESS, K, L, draw
from tests.oracles import TableBackbone, masked_model

SHAPES = {
    "allowed": torch.ones(2, L, K + 1, dtype=torch.bool),
    "padding": torch.zeros(2, L + 1, dtype=torch.bool),
    "seeds": torch.arange(3),
}


def refused(message: str, **options) -> None:
    class Untouched(TableBackbone):
        def logits(self, inputs):
            raise AssertionError("the network was called")

    for sampler in ALL:
        given = {"generator": torch.Generator(), "x_init": PROCESS.blank((2, L)), **options}
        given = {name: value for name, value in given.items() if value is not None}
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            sampler.sample(masked_model(Untouched(K)), **given)
        assert "\n" not in str(caught.value)


def test_bad_requests_are_refused_before_the_network() -> None:
    refused("got 9 at row 1, position 2", x_init=torch.tensor([[0] * 5, [0, 0, 9, 0, 0]]))
    refused("only one of them, got neither; pass", generator=None)
    refused("only one of them, got both; pass", seeds=torch.arange(2))
    refused("seeds must be in [0, 2^63), got -4", seeds=torch.tensor([1, -4]), generator=None)
    allowed = torch.ones(2, L, K, dtype=torch.bool)
    allowed[1, 3] = False
    refused(
        "allowed must hold a symbol of every position, got only [] at row 1, position 3 where "
        "x_init is 3; allow at least one",
        allowed=allowed,
    )
    x_init = PROCESS.blank((2, L))
    x_init[1, 2] = 0
    allowed = torch.ones(2, L, K, dtype=torch.bool)
    allowed[1, 2, 0] = False
    refused(
        "allowed must hold the visible symbol of every position, got only [1, 2] at row 1, "
        "position 2 where x_init is 0; mask it or change the constraint",
        x_init=x_init,
        allowed=allowed,
    )


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_that_do_not_fit(name: str) -> None:
    """The tests' shape checker would fail first, so the check is called directly."""
    given = {"allowed": None, "padding": None, "seeds": None, name: SHAPES[name]}
    generator = None if name == "seeds" else torch.Generator()
    with pytest.raises(ValueError, match=rf"Sampler.{name} must have shape .* like x_init, got"):
        check_request(PROCESS.blank((2, L)), K, generator=generator, **given)


def test_constraints_do_not_bind_padding() -> None:
    allowed, padding = torch.ones(1, L, K, dtype=torch.bool), torch.zeros(1, L, dtype=torch.bool)
    allowed[0, 4], padding[0, 4] = False, True
    output, _ = draw(FirstHittingSampler(), PROCESS.blank((1, L)), allowed=allowed, padding=padding)
    assert output.tokens[0, 4] == K and (output.tokens[0, :4] < K).all()


def test_a_model_that_gives_no_chance_is_reported() -> None:
    class Sure(TableBackbone):
        def logits(self, inputs):
            logits = torch.full((*inputs.tokens.shape, K), -torch.inf)
            logits[..., 0] = 0.0
            return logits

    allowed = torch.ones(1, L, K, dtype=torch.bool)
    allowed[0, 2, 0] = False
    with pytest.raises(ValueError, match="a probability above 0, got log-probability -inf at row"):
        FirstHittingSampler().sample(
            masked_model(Sure(K)),
            PROCESS.blank((1, L)),
            generator=torch.Generator(),
            allowed=allowed,
        )


def test_bad_settings() -> None:
    bad = {
        "ancestral": {"num_steps": 0},
        "cached_ancestral": {"num_steps": -1},
        "first_hitting": {"num_steps": 0},
        "confidence": {"num_steps": 0},
        "threshold": {"threshold": 0.0},
        "entropy_budget": {"budget": -0.1},
        "remask_cap": {"eta": 1.5},
        "remask_loop": {"t_on": 0.05},
        "predictor_corrector": {"renoise": 0.0},
    }
    for name, options in bad.items():
        cls = named_samplers()[name]
        (field, value), *_ = options.items()
        with pytest.raises(ValueError, match=rf"{cls.__name__}.{field} must .*, got {value}"):
            cls(**options)
    for field in ({"alpha_on": 1.0}, {"t_off": 0.0}):
        with pytest.raises(ValueError, match="RemaskLoopSampler"):
            named_samplers()["remask_loop"](**field)
    with pytest.raises(ValueError, match=r"corrector_steps must be at least 1, got 0"):
        named_samplers()["predictor_corrector"](corrector_steps=0)
    with pytest.raises(ValueError, match=r"stride must be in 1..window = 3, got 4"):
        SemiAutoregressiveSampler(3, 4)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: FirstHittingSampler(2.5), "FirstHittingSampler.num_steps must be an integer, got"),
        (lambda: FirstHittingSampler(top_k=1.5), "FirstHittingSampler.top_k must be an integer, g"),
        (lambda: FirstHittingSampler(True), "num_steps must be an integer, got True; convert it"),
        (
            lambda: FirstHittingSampler(temperature="1"),
            "temperature must be a number, got '1';",
        ),
        (lambda: FirstHittingSampler(temperature=None), "temperature must be a number, got None"),
        (lambda: AncestralSampler(2.5), "AncestralSampler.num_steps must be an integer, got 2.5"),
        (lambda: AncestralSampler(None), "AncestralSampler.num_steps must be an integer, got None"),
        (lambda: EntropySampler(2.5), "EntropySampler.num_steps must be an integer, got 2.5"),
        (lambda: RemaskCapSampler(eta="a"), "RemaskCapSampler.eta must be a number, got 'a'"),
        (
            lambda: PredictorCorrectorSampler(corrector_steps=1.5),
            "PredictorCorrectorSampler.corrector_steps must be an integer, got 1.5; convert it",
        ),
        (
            lambda: SemiAutoregressiveSampler(4.0, 2),
            "SemiAutoregressiveSampler.window must be an integer, got 4.0",
        ),
        (
            lambda: SemiAutoregressiveSampler(4, 2, AncestralSampler),
            "SemiAutoregressiveSampler.inner must be a sampler, got <class",
        ),
        (lambda: BlockSampler(3), "BlockSampler.inner must be a sampler, got 3; build one"),
        (lambda: BlockSampler(stop_id=1.5), "BlockSampler.stop_id must be an integer, got 1.5"),
        (lambda: BlockSampler(min_entropy="a"), "BlockSampler.min_entropy must be a number, got"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_options_of_another_type(build, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        build()
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("unchecked")
def test_numbers_of_numpy_are_numbers() -> None:
    sampler = FirstHittingSampler(np.int64(3), temperature=np.float32(0.5), top_p=1)
    assert (draw(sampler, PROCESS.blank((2, L)))[0].tokens < K).all()


@pytest.mark.parametrize(
    ("x_init", "got"),
    [
        (PROCESS.blank((2, L)).double(), "torch.float64; call .long() on ids"),
        (PROCESS.blank((2, L)) > 0, "torch.bool; call .long() on ids"),
        (PROCESS.blank((1, L))[0], f"shape ({L},); a single row is x_init[None]"),
        (PROCESS.blank((1, L))[None], f"shape (1, 1, {L}); a single row"),
        ([[3, 3]], "a list; torch.tensor makes one"),
    ],
    ids=["float", "bool", "1-D", "3-D", "list"],
)
@pytest.mark.usefixtures("unchecked")
def test_rows_of_another_shape_or_type(x_init, got: str) -> None:
    message = f"Sampler.x_init must be a tensor of integers [B, L], got {got}"
    refused(message, x_init=x_init)
    with pytest.raises(ValueError, match=re.escape(message)):
        check_request(x_init, K, None, None, torch.Generator(), None)


def test_dtypes_that_do_not_fit() -> None:
    shapes = {"allowed": (2, L, K), "padding": (2, L)}
    for name, shape in shapes.items():
        given = {"allowed": None, "padding": None, name: torch.ones(shape, dtype=torch.int64)}
        with pytest.raises(ValueError, match=rf"Sampler\.{name} must be bool, got torch\.int64"):
            check_request(PROCESS.blank((2, L)), K, **given, generator=None, seeds=None)
    with pytest.raises(ValueError, match=r"Sampler\.seeds must be integers, got torch\.float32"):
        check_request(PROCESS.blank((2, L)), K, None, None, None, torch.tensor([0.2, 0.7]))
