from .constraints import Constraints as Constraints
from .constraints import Nearest as Nearest
from .constraints import describe_failures as describe_failures
from .constraints import forbid as forbid
from .constraints import nearest as nearest
from .selection import SELECTIONS as SELECTIONS
from .selection import pairwise_distances as pairwise_distances
from .selection import select as select
