"""What is printed fits terminals of 60, 80 and 120 columns, in Chinese too, and no word is broken."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from mingyue.cli import progress, screen
from mingyue.cli.live import Live
from mingyue.cli.progress import RunScreen
from mingyue.display.fitting import cells, fitting, fitting_line
from mingyue.training import EvaluationReport, StepReport

WIDTHS = (60, 80, 120)
ENGLISH = "The training text does not have these characters of the prompt, so the model cannot know what they mean."
CHINESE = (
    "这段提示里有训练文本中没有的字符，模型不知道它们的意思；请换一个提示，或者用更多的文本重新训练模型，然后再试一次。"
)


@pytest.fixture(params=WIDTHS)
def width(request) -> int:
    return request.param


@pytest.fixture
def terminal(monkeypatch, width) -> Console:
    """A terminal of that width in the place of both outputs."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, soft_wrap=True)
    for module in (screen, progress):
        monkeypatch.setattr(module, "stdout", lambda: console)
    monkeypatch.setattr(screen, "stderr", lambda: console)
    return console


def lines_of(console: Console, text: str = "") -> list[str]:
    """The lines that were printed, all of which fit; the words of `text` are all there, whole."""
    printed = console.file.getvalue()
    lines = printed.rstrip("\n").split("\n")
    assert all(cells(line) <= console.width for line in lines), lines
    if text and not text[0] > "\u3000":
        assert [word for line in lines for word in line.split()][-len(text.split()) :] == text.split()
    elif text:
        assert text in printed.replace("\n", "")
    return lines


@pytest.mark.parametrize("text", [ENGLISH, CHINESE])
def test_notes_and_sentences_are_broken_between_words(terminal, text):
    screen.print_note(text)
    lines_of(terminal, text)
    terminal.file.truncate(0)
    terminal.file.seek(0)
    screen.say(text)
    lines_of(terminal, text)


@pytest.mark.parametrize("text", [ENGLISH, CHINESE])
def test_lines_above_the_bar_alike(terminal, text):
    Live(terminal).say(text)
    lines_of(terminal, text)


def evaluation(**changes) -> EvaluationReport:
    loss = SimpleNamespace(loss=3.1234, bits_per_byte=1.2345, perplexity=22_712_345.25, tokens=9)
    fields = {"step": 12_345, "evaluation": loss, "best": True, "final": False, "seconds": 3_599.0, "measures": {}}
    return SimpleNamespace(**(fields | changes))


def test_the_line_of_an_evaluation_takes_one_line_and_keeps_the_losses(terminal, width):
    """N6: of more than 100 columns, it broke in the middle of a word."""
    run = RunScreen(clock=lambda: 0.0)
    run._sum, run._count = 3.0, 1
    run.on_evaluate(evaluation(measures={"bleu": 12.34}))
    (line,) = lines_of(terminal)
    assert line.startswith("step 12,345  train 3.0000  held out 3.1234 nats/token")
    assert ("best" in line) == (width > 60)
    assert ("bits/byte" in line) == (width > 80)
    assert ("after" in line) == (width > 200)


def test_off_a_terminal_nothing_is_left_out(monkeypatch):
    console = Console(file=io.StringIO(), width=60, color_system=None, soft_wrap=True)
    monkeypatch.setattr(progress, "stdout", lambda: console)
    RunScreen(clock=lambda: 0.0).on_evaluate(evaluation())
    line = console.file.getvalue()
    assert line.count("\n") == 1
    assert "after 59 min 59 s" in line


@pytest.mark.parametrize("what", ["step 12,345/123,456", "读取文本"])
def test_the_bar_fits_its_line(terminal, what, width):
    with Live(terminal, clock=lambda: 1.0) as live:
        live.show(what, 1, 10, ["损失 3.1234", "held out 3.1234", "3 min 05 s left", "123,456 tokens/s", "99% of peak"])
        drawn = terminal.file.getvalue().split("\r")[-1].strip("\n")
    text = "".join(character for character in drawn if character.isprintable())
    assert cells(text.rstrip()) <= width
    assert "损失 3.1234" in text


def test_tables_lose_columns_before_words(terminal, width, monkeypatch):
    rows = screen.table("name", "here", "size", "what", "licence", right=("size",))
    licences = "PSF-2.0-and-something-longer-than-usual"
    rows.add_row("tang", "yes", "12.3 MB", "Poems of the Tang dynasty, traditional characters 全唐诗", licences)
    rows.add_row("shakespeare", "no", "1.1 MB", "Plays and sonnets of William Shakespeare, in one text", licences)
    screen.show(rows, droppable=("size", "licence"))
    lines = lines_of(terminal)
    words = " ".join(lines).split()
    assert {"shakespeare", "William", "traditional", "sonnets", "tang"} <= set(words)
    assert (licences in words) == (width > 80)
    assert "MB" in words


def test_parts_are_left_out_by_rank_and_counted_in_cells():
    parts = [(0, "step 10"), (2, "损失"), (1, "best"), (3, "x")]
    assert [fitting_line(parts, room) for room in (30, 20, 19, 17, 13, 3)] == [
        "step 10  损失  best  x",
        "step 10  损失  best",
        "step 10  损失  best",
        "step 10  best",
        "step 10  best",
        "step 10",
    ]
    assert [fitting(["损失", "ab", "c"], room) for room in (11, 10, 8, 7, 3)] == [
        "损失  ab  c",
        "损失  ab",
        "损失  ab",
        "损失",
        "",
    ]


def test_a_step_report_has_the_fields_that_the_bar_needs():
    assert {"loss", "tokens_per_second", "seconds_left"} <= set(StepReport.__dataclass_fields__)
    assert {"evaluation", "best", "final", "seconds", "measures"} <= set(EvaluationReport.__dataclass_fields__)
