"""How a run from Python shows itself: in a notebook, on standard error, or not at all."""

from __future__ import annotations

import io
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import mingyue
from mingyue.display.default import default_display
from mingyue.display.live import Live
from mingyue.display.notebook import NotebookLive, notebook_display
from mingyue.display.run_display import RunDisplay
from mingyue.training import Evaluation, EvaluationReport, Plan, StepReport

TEXT = "".join(f"The mill {number % 9} turns by the <river> {number % 7}.\n" for number in range(60))
TINY: dict[str, Any] = {"depth": 1, "d_model": 32, "context": 32, "batch_tokens": 128, "threads": 1, "steps": 4}


class Cell:
    """A notebook's output, as IPython's `display` fills it."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, str]] = []
        self.updates = 0

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Cell:
        assert raw and display_id
        self.outputs.append(data)
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.outputs[-1] = data
        self.updates += 1


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """A process that looks like the kernel of a notebook."""
    cell = Cell()
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    display.display = cell.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return cell


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


class Balanced(HTMLParser):
    """Raises for tags that do not close each other."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def is_balanced(html: str) -> bool:
    parser = Balanced()
    parser.feed(html)
    return not parser.open


def test_a_run_in_a_notebook_is_one_output_of_the_cell(cell: Cell, text: Path, capsys: pytest.CaptureFixture) -> None:
    """It is replaced as the run proceeds, holds the lines, and at the end no bar."""
    mingyue.train(sources=text, out=text.parent / "run", **TINY)
    assert len(cell.outputs) == 1
    shown = cell.outputs[0]["text/html"]
    assert cell.updates > 4
    assert "held out" in shown and "final" in shown
    assert "<progress" not in shown and "<script" not in shown
    assert is_balanced(shown)
    assert "".join(capsys.readouterr()) == ""


def test_a_bar_in_a_notebook_has_its_numbers_and_escapes_texts(cell: Cell) -> None:
    live = NotebookLive(cell.display)
    live.show("step 5/10 <b>", 5.0, 10.0, ["loss 2.5 & more"])
    live.say("</pre><b>a line\x07")
    shown = cell.outputs[0]["text/html"]
    assert 'value="5.0000" max="10.0000"' in shown
    assert "step 5/10 &lt;b&gt;" in shown and "loss 2.5 &amp; more" in shown and "&lt;/pre&gt;&lt;b&gt;a line␇" in shown
    assert is_balanced(shown)


def test_outside_of_a_notebook_it_is_standard_error(text: Path, capsys: pytest.CaptureFixture) -> None:
    """Standard output belongs to the caller's program."""
    assert notebook_display() is None
    mingyue.train(sources=text, out=text.parent / "run", **TINY)
    out, err = capsys.readouterr()
    assert out == ""
    assert "final  held out" in err


def test_an_interactive_shell_without_a_kernel_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = ModuleType("IPython")
    shell.get_ipython = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert notebook_display() is None
    assert isinstance(default_display(), RunDisplay)


@pytest.mark.parametrize("verb", ["train", "resume"])
def test_an_observer_of_ones_own_silences_the_display(
    text: Path, capsys: pytest.CaptureFixture, cell: Cell, verb: str
) -> None:
    """`mingyue.Observer()` shows nothing."""
    run = text.parent / "run"
    mingyue.train(sources=text, out=run, observer=mingyue.Observer(), **TINY)
    if verb == "resume":
        mingyue.resume(run, steps=6, observer=mingyue.Observer())
    assert cell.outputs == []
    assert "".join(capsys.readouterr()) == ""


def plain() -> tuple[RunDisplay, io.StringIO]:
    file = io.StringIO()
    return RunDisplay(Live(Console(file=file, width=200, color_system=None), clock=lambda: 0.0)), file


def step(number: int, loss: float = 2.0) -> StepReport:
    return StepReport(number, 8, loss, 1e-3, 1.0, 100.0, float(number), 1.0, None)


def test_without_held_out_text_the_training_loss_has_lines() -> None:
    """A line where an evaluation would be: the mean since the line before."""
    display, file = plain()
    display.on_plan(Plan("constant", 8, 0, 8, 0.5, 0.0, 4, None, 1, None, True))
    for number in range(1, 9):
        display.on_step(step(number, loss=10.0 - number))
    display.on_end(None)  # type: ignore[arg-type]
    assert file.getvalue().splitlines() == [
        "step 4  train 7.5000 nats/token  after 4 s",
        "step 8  train 3.5000 nats/token  after 8 s",
    ]


def test_with_held_out_text_there_is_one_line_for_each_evaluation() -> None:
    display, file = plain()
    display.on_plan(Plan("constant", 8, 0, 8, 0.5, 0.0, 4, None, 1, None, True))
    for number in range(1, 9):
        display.on_step(step(number))
        if number % 4 == 0:
            display.on_evaluate(EvaluationReport(number, 1.0, Evaluation(100.0, 100, 1.0), best=False))
    display.on_end(None)  # type: ignore[arg-type]
    assert len(file.getvalue().splitlines()) == 2


def test_without_a_bar_each_stage_of_the_end_is_a_line() -> None:
    """T32: so a log does not stand still without a reason; stages before the first step come with their lines."""
    display, file = plain()
    display.on_progress("reading", 1, 2)
    display.on_step(step(1))
    for done in range(3):
        display.on_progress("final evaluation", done, 3)
    display.on_progress("generating texts", 0, 0)
    assert file.getvalue().splitlines() == ["final evaluation…", "generating texts…"]


def test_on_a_terminal_a_new_stage_is_drawn_at_once() -> None:
    """T32: a stage that reports once, right after another one, must not be dropped as a redraw that comes too soon."""
    file = io.StringIO()
    live = Live(Console(file=file, force_terminal=True, width=100, color_system=None), clock=lambda: 0.0)
    live.show_stage("saving the model", 0, 0)
    live.show_stage("generating texts", 0, 0)
    live.clear()
    assert "generating texts" in file.getvalue()
