"""Arguments that several verbs have, and the form of options that take several values."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from mingyue.config import Workers


def repeatable(text: str) -> Parameter:
    """An option that is given once for each value; the help must not look as if one could be followed by several."""
    return Parameter(help=text, negative=(), metavar="STR")


ModelFolder = Annotated[str, Parameter(help="Run folder or model folder.")]
Device = Annotated[str | None, Parameter(help="cpu, cuda or mps [default: best available].")]
Threads = Annotated[Workers | None, Parameter(help="Number of CPU threads [default: all available cores].")]
Backend = Annotated[
    Literal["torch", "onnxruntime"] | None,
    Parameter(help="What computes the model [default: onnxruntime on CPUs, if installed; else torch]."),
]
ScoreBackend = Annotated[
    Literal["torch", "onnxruntime"] | None,
    Parameter(help="What computes the model [default: torch; with --weights int8 onnxruntime]."),
]
Weights = Annotated[
    Literal["fp32", "int8"],
    Parameter(help="Numbers of the weights: int8 is faster, less exact, and needs onnxruntime."),
]
Encoding = Annotated[
    str | None, Parameter(help="Encoding of the text [default: UTF-8; detected where a file is not UTF-8].")
]
JsonLines = Annotated[bool, Parameter(help="Print one line of JSON for each text.", negative=())]
JsonTable = Annotated[bool, Parameter(help="Print JSON instead of tables.", negative=())]
