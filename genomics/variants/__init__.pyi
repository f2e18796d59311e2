from .effects import AlleleWindows as AlleleWindows
from .effects import allele_windows as allele_windows
from .effects import likelihood_ratios as likelihood_ratios
from .effects import masked_marginals as masked_marginals
from .effects import mutation_effects as mutation_effects
from .table import Scoring as Scoring
from .table import survey as survey
from .table import write_table as write_table
