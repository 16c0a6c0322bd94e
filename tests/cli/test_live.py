"""What is seen of long work: a bar on a terminal, quiet lines elsewhere, and never an end because of the screen."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mingyue.cli.live import Live, Stages, duration, fitting


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def console(*, terminal, file=None):
    return Console(file=file or io.StringIO(), force_terminal=terminal, width=120, color_system=None)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (99.4, "99 s"),
        (100, "1 min 40 s"),
        (3599, "59 min 59 s"),
        (7620, "2 h 07 min"),
        (-3, "0 s"),
        (float("inf"), "? s"),
    ],
)
def test_durations_are_for_people(seconds, text):
    assert duration(seconds) == text


def test_off_a_terminal_lines_come_seldom_and_whole():
    clock, screen = Clock(), console(terminal=False)
    with Live(screen, clock=clock) as live:
        for second in range(100):
            clock.now = float(second)
            live.show(f"at {second}", second, 100, ["x", "y"])
        live.say("done")
    assert screen.file.getvalue() == "at 30  x  y\nat 60  x  y\nat 90  x  y\ndone\n"


def test_a_line_that_was_printed_postpones_the_next():
    clock, screen = Clock(), console(terminal=False)
    live = Live(screen, clock=clock)
    clock.now = 20.0
    live.say("an evaluation")
    clock.now = 40.0
    live.show("alive", 1, 2)
    clock.now = 51.0
    live.show("alive", 1, 2)
    assert screen.file.getvalue() == "an evaluation\nalive\n"


def test_on_a_terminal_the_bar_is_drawn_twice_a_second_at_most():
    clock, screen = Clock(), console(terminal=True)
    with Live(screen, clock=clock) as live:
        for tick in range(101):
            clock.now = tick / 100
            live.show("step", tick, 1000, [f"<{tick}>"])
    drawn = [tick for tick in range(101) if f"<{tick}>" in screen.file.getvalue()]
    assert drawn == [0, 50, 100]


def test_the_last_state_of_a_stage_is_always_drawn():
    screen = console(terminal=True)
    with Stages(screen) as stages:
        for done in range(5):
            stages("reading", done + 1, 5)
    assert "100%" in screen.file.getvalue()


def test_lines_stand_above_the_bar_and_the_bar_leaves_nothing():
    screen = console(terminal=True)
    with Live(screen) as live:
        live.show("step", 1, 2, ["numbers"])
        live.say("a line")
    after_line = screen.file.getvalue().split("a line")[1]
    assert after_line.rstrip().endswith("\x1b[2K") or "\x1b[1A\x1b[2K" in after_line


class ClosedPipe(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


@pytest.mark.parametrize("terminal", [False, True])
def test_work_goes_on_when_the_screen_is_gone(terminal, monkeypatch):
    monkeypatch.setattr(Console, "on_broken_pipe", lambda self: (_ for _ in ()).throw(SystemExit(1)))
    clock = Clock()
    with Live(console(terminal=terminal, file=ClosedPipe()), clock=clock) as live:
        for second in range(0, 200, 40):
            clock.now = float(second)
            live.say("text")
            live.show("step", second, 200)


def test_text_is_never_taken_for_markup():
    screen = console(terminal=False)
    Live(screen).say("[red]x[/red] [/]")
    assert screen.file.getvalue() == "[red]x[/red] [/]\n"


@pytest.mark.parametrize(
    ("room", "shown"),
    [(100, "loss 1  left 2  rate 3"), (15, "loss 1  left 2"), (14, "loss 1  left 2"), (13, "loss 1"), (2, "")],
)
def test_a_narrow_terminal_loses_the_last_numbers_first(room, shown):
    assert fitting(["loss 1", "left 2", "rate 3"], room) == shown
