"""A training run on the screen, from the reports that training gives."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from mingyue.cli import progress
from mingyue.training import Evaluation, EvaluationReport, StepReport


@pytest.fixture
def screen(monkeypatch):
    """Makes a `RunScreen` on a pretended screen and gives both."""

    def make(*, terminal, width=140):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)
        monkeypatch.setattr(progress, "stdout", lambda: console)
        return progress.RunScreen(clock=lambda: 0.0), console.file

    return make


def step(number: int, **changes) -> StepReport:
    values = {
        "step": number, "total_steps": 400, "loss": 2.5, "learning_rate": 1e-3, "gradient_norm": 1.0,
        "tokens_per_second": 12_345.6, "seconds": 60.0, "seconds_left": 180.0, "share_of_peak": 0.62,
    }  # fmt: skip
    return StepReport(**{**values, **changes})


def evaluation(number: int, nats: float = 1500.0, **changes) -> EvaluationReport:
    return EvaluationReport(
        number, 75.0, Evaluation(nats, tokens=1000, bytes_per_token=1.5), **{"best": False, **changes}
    )


def test_the_bar_shows_rate_time_left_and_both_losses(screen):
    run, file = screen(terminal=True)
    with run:
        run.on_evaluate(evaluation(90))
        run.on_step(step(100))
    shown = file.getvalue()
    for part in ("step 100/400", "loss 2.5000", "held out 1.5000", "3 min 00 s left", "12,346 tokens/s", "62% of peak"):
        assert part in shown, part


def test_the_bar_fits_a_narrow_terminal_and_keeps_the_time_left(screen):
    run, file = screen(terminal=True, width=80)
    with run:
        run.on_step(step(100))
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).replace("\r", "\n")
    assert "3 min 00 s left" in drawn
    assert max(map(len, drawn.split("\n"))) <= 80


def test_an_evaluation_is_a_line_with_the_mean_of_the_steps_before_it(screen):
    run, file = screen(terminal=False)
    run.on_step(step(1, loss=3.0))
    run.on_step(step(2, loss=2.0))
    run.on_evaluate(evaluation(2, best=True))
    run.on_step(step(3, loss=1.0))
    run.on_evaluate(evaluation(3, nats=1600.0))
    first, second = file.getvalue().splitlines()
    assert first.startswith("step 2  train 2.5000  held out 1.5000 nats/token  1.4427 bits/byte  perplexity 4.48")
    assert first.endswith("after 75 s  best")
    assert second.startswith("step 3  train 1.0000  held out 1.6000")
    assert not second.endswith("best")


def test_the_final_evaluation_is_told_from_those_on_the_way(screen):
    run, file = screen(terminal=False)
    run.on_step(step(1))
    run.on_evaluate(evaluation(1, best=True, final=True))
    assert file.getvalue().startswith("final  held out 1.5000")


def test_a_sample_is_cut_to_a_few_lines_and_sends_no_commands_to_the_terminal(screen):
    run, file = screen(terminal=False)
    run.on_sample(5, "\x1b[2J[red]" + "\n".join(str(number) for number in range(50)))
    lines = file.getvalue().splitlines()
    assert lines[0] == "sample at step 5:"
    assert lines[1] == "    ␛[2J[red]0"
    assert lines[-1].strip() == "…"
    assert len(lines) < 12


def test_a_loss_that_is_not_a_number_is_shown_as_it_is(screen):
    run, file = screen(terminal=True)
    with run:
        run.on_step(step(1, loss=float("nan"), share_of_peak=None))
    assert "loss nan" in file.getvalue()


def test_what_needs_no_word_gets_none(screen):
    run, file = screen(terminal=False)
    run.on_checkpoint(Path("x"), 5, best=True)
    assert file.getvalue() == ""
    run.on_note("a sentence")
    assert file.getvalue() == "a sentence\n"


def test_reading_shows_its_share_where_the_whole_is_known(screen):
    run, file = screen(terminal=True)
    with run:
        run.on_progress("reading", 10, 10)
        run.on_progress("fetching", 12345, 0)
    assert "reading" in file.getvalue()
    assert "100%" in file.getvalue()
