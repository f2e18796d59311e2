from .colors import Colors as Colors
from .colors import rasterize as rasterize
from .colors import write_figure as write_figure
from .differences import draw_differences as draw_differences
from .trace import develop as develop
from .trace import draw_trace as draw_trace
from .trace import film_trace as film_trace
from .variance import draw_variances as draw_variances
