"""Forward processes, which turn clean tokens into noise, and their reverse kernels."""

from seqdiff.process.absorbing import Absorbing
from seqdiff.process.base import (
    Context,
    DiscreteProcess,
    Interpolating,
    Process,
    SymbolProcess,
    small_times,
)
from seqdiff.process.blockwise import (
    Blockwise,
    LeftToRight,
    check_block_size,
    check_block_sizes,
    spell_sizes,
)
from seqdiff.process.gaussian import Gaussian, log_signal, posterior, scales
from seqdiff.process.hybrid import Hybrid
from seqdiff.process.token_schedules import (
    AbsorbingByContext,
    AbsorbingBySymbol,
    TokenScheduled,
)
from seqdiff.process.uniform import Uniform

__all__ = [
    "Absorbing",
    "AbsorbingByContext",
    "AbsorbingBySymbol",
    "Blockwise",
    "Context",
    "DiscreteProcess",
    "Gaussian",
    "Hybrid",
    "Interpolating",
    "LeftToRight",
    "Process",
    "SymbolProcess",
    "TokenScheduled",
    "Uniform",
    "check_block_size",
    "check_block_sizes",
    "log_signal",
    "posterior",
    "scales",
    "small_times",
    "spell_sizes",
]
