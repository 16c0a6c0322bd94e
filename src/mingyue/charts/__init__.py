"""Charts of what was seen and measured: line, bar, scatter, matrices, coloured text; pages that need no network.

Importing this needs no more than numpy. Vega-Lite charts, pictures (PNG, SVG) and pages that hold Vega-Lite charts need
the extra `plot` (altair, vl-convert-python, pillow), and say so with a `MissingExtraError` where it is missing.
"""

from mingyue.charts.chart import Chart, TextMark
from mingyue.charts.grids import MatrixGrid, matrix_grid
from mingyue.charts.matrices import MatrixChart, matrix_chart
from mingyue.charts.page import Section, page_of_charts, write_page
from mingyue.charts.plots import BarChart, LineChart, ScatterChart, bar_chart, line_chart, scatter_chart
from mingyue.charts.texts import TextChart, WordGrid, text_chart, word_grid
from mingyue.charts.write import check_place, write_charts, write_json

__all__ = [
    "BarChart",
    "Chart",
    "LineChart",
    "MatrixChart",
    "MatrixGrid",
    "ScatterChart",
    "Section",
    "TextChart",
    "TextMark",
    "WordGrid",
    "bar_chart",
    "check_place",
    "line_chart",
    "matrix_chart",
    "matrix_grid",
    "page_of_charts",
    "scatter_chart",
    "text_chart",
    "word_grid",
    "write_charts",
    "write_json",
    "write_page",
]
