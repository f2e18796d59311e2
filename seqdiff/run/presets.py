"""The systems of the papers: a process, a parameterization and an objective under one name.

A preset is chosen by ``seqdiff train CONFIG --preset NAME``, or by the key ``preset`` of a
configuration file, whose other keys override it. It makes the network time-conditioned where that
is needed, and leaves it as it is otherwise. The systems of the papers have no n-gram experts, so a
preset switches them off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Preset(NamedTuple):
    """A named system.

    Attributes:
        about: Description in one line, with the source.
        keys: Keys of the configuration.
        time_conditioned: Whether the network takes the noise level as an input.
    """

    about: str
    keys: Mapping[str, object]
    time_conditioned: bool = False


def _of(name: str, **options: object) -> dict[str, object]:
    return {"class_path": f"seqdiff.{name}", "init_args": options}


_SPREAD = {"time_sampler": _of("objectives.Sobol")}
_LINEAR = {"schedule": _of("schedules.LogLinear")}


def _system(
    process: dict[str, object],
    parameterization: str,
    objective: dict[str, object],
    block_size: int | None = None,
) -> dict[str, object]:
    return {
        "process": process,
        "parameterization": _of(f"parameterization.{parameterization}"),
        "objective": objective,
        "block_size": block_size,
        "experts": None,
    }


_MASKS = _of("process.Absorbing", **_LINEAR)

PRESETS: dict[str, Preset] = {
    "mdlm": Preset(
        "masked diffusion; Sahoo et al. 2024, arXiv:2406.07524",
        _system(_MASKS, "Subs", _of("objectives.ContinuousNELBO", **_SPREAD)),
    ),
    "bd3lm": Preset(
        "block diffusion, blocks of 16; Arriola et al. 2025, arXiv:2503.09573",
        _system(_MASKS, "Subs", _of("objectives.BlockNELBO", beta=0.3, omega=0.8, **_SPREAD), 16),
    ),
    "sedd": Preset(
        "score entropy with masks; Lou et al. 2024, arXiv:2310.16834",
        _system(_MASKS, "Score", _of("objectives.ContinuousNELBO", **_SPREAD)),
        time_conditioned=True,
    ),
    "sedd_uniform": Preset(
        "score entropy with uniform noise; Lou et al. 2024, arXiv:2310.16834",
        _system(
            _of(
                "process.Uniform",
                schedule=_of("schedules.Geometric", sigma_min=1e-4, sigma_max=20.0),
            ),
            "Score",
            _of("objectives.ContinuousNELBO", **_SPREAD),
        ),
        time_conditioned=True,
    ),
    "d3pm": Preset(
        "1,000 steps with masks and a mask column; Austin et al. 2021, arXiv:2107.03006",
        _system(
            _MASKS,
            "MaskColumn",
            _of("objectives.DiscreteNELBO", num_steps=1000, auxiliary=0.01, **_SPREAD),
        ),
        time_conditioned=True,
    ),
    "d3pm_uniform": Preset(
        "1,000 steps of uniform noise; Austin et al. 2021, arXiv:2107.03006",
        _system(
            _of("process.Uniform", schedule=_of("schedules.Cosine")),
            "LeaveOneOut",
            _of("objectives.DiscreteNELBO", num_steps=1000, **_SPREAD),
        ),
        time_conditioned=True,
    ),
    "udlm": Preset(
        "uniform noise in continuous time; Schiff et al. 2024, arXiv:2412.10193",
        _system(
            _of("process.Uniform", **_LINEAR),
            "LeaveOneOut",
            _of("objectives.ContinuousNELBO", **_SPREAD),
        ),
        time_conditioned=True,
    ),
    "gidd": Preset(
        "masks with a tenth of uniform noise; von Ruette et al. 2025, arXiv:2503.04482",
        _system(
            _of("process.Hybrid", p_u=0.1),
            "LeaveOneOut",
            _of("objectives.ContinuousNELBO", **_SPREAD),
        ),
        time_conditioned=True,
    ),
    "genmd4": Preset(
        "masks with a learned schedule for every symbol; Shi et al. 2024, arXiv:2406.04329",
        _system(
            _of("process.AbsorbingBySymbol"),
            "LeaveOneOut",
            _of("objectives.TokenScheduleNELBO", **_SPREAD),
        ),
        time_conditioned=True,
    ),
    "lomdm": Preset(
        "masks with a learned schedule for every token given its row; arXiv:2602.02112",
        _system(
            _of("process.AbsorbingByContext"),
            "Velocity",
            _of("objectives.TokenScheduleNELBO", **_SPREAD),
        ),
        time_conditioned=True,
    ),
    "ar": Preset(
        "autoregressive, with a causal network",
        _system(_of("process.LeftToRight"), "LeaveOneOut", _of("objectives.Autoregressive")),
    ),
    "mlm": Preset(
        "BERT's masked language model; Devlin et al. 2019, arXiv:1810.04805",
        _system(_MASKS, "Subs", _of("objectives.MaskedLM")),
    ),
    "plaid": Preset(
        "Gaussian noise on embeddings; Gulrajani and Hashimoto 2023, arXiv:2305.18619",
        _system(_of("process.Gaussian"), "Categorical", _of("objectives.GaussianVLB", **_SPREAD)),
        time_conditioned=True,
    ),
}


def find_preset(name: str) -> Preset:
    """Find a preset by its name, with dashes or underscores.

    Raises:
        ValueError: If there is none; lists the names.
    """
    found = PRESETS.get(name.replace("-", "_"))
    if found is None:
        raise ValueError(
            f"train.preset must be one of {', '.join(PRESETS)}, got {name!r}; choose one"
        )
    return found
