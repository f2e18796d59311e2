from .colors import Colors as Colors
from .film import develop as develop
from .movie import film_trace as film_trace
from .still import write_figure as write_figure
from .trace import draw_trace as draw_trace
from .variance import draw_variances as draw_variances
