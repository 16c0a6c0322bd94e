"""Charts: lines, bars, points, matrices and coloured text, as images and as offline pages.

Importing this package needs no more than NumPy. Vega-Lite charts, images (PNG, SVG) and pages with Vega-Lite charts
need the extra `plot` (altair, vl-convert-python, pillow); without it they raise `MissingExtraError`.
"""

from mingyue.charts.chart import Chart, TextMark
from mingyue.charts.dials import Dial, DialGrid, Hand
from mingyue.charts.matrices import MatrixChart, MatrixGrid
from mingyue.charts.page import Folded, Labelled, Section, page_of_charts
from mingyue.charts.plots import BarChart, LineChart, ScatterChart
from mingyue.charts.table_chart import TableChart
from mingyue.charts.text_charts import TextChart, WordGrid
from mingyue.charts.token_lines import TokenLines
from mingyue.charts.write import check_output_path, write_charts, write_json, write_page

__all__ = [
    "BarChart",
    "Chart",
    "Dial",
    "DialGrid",
    "Folded",
    "Hand",
    "Labelled",
    "LineChart",
    "MatrixChart",
    "MatrixGrid",
    "ScatterChart",
    "Section",
    "TableChart",
    "TextChart",
    "TextMark",
    "TokenLines",
    "WordGrid",
    "check_output_path",
    "page_of_charts",
    "write_charts",
    "write_json",
    "write_page",
]
