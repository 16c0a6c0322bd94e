"""The film of a run: the frames stored by `--watch`, and those computed from the checkpoints that are kept."""

from __future__ import annotations

from pathlib import Path

from mingyue.api.inspected import subject_of
from mingyue.api.loading import load_either
from mingyue.errors import SettingsError
from mingyue.inspection.film import FilmView, film_view
from mingyue.inspection.frames import Frame, read_frames, take_frame
from mingyue.paths import path_of
from mingyue.runs.loading import check_has_checkpoint
from mingyue.runs.watching import read_watched
from mingyue.training import Checkpoints, RunFolder, read_log
from mingyue.words import tr


def film_of(
    folder: str | Path, text: str | None = None, *, device: str | None = None, threads: int | None = None
) -> FilmView:
    """One text (for pairs: one to translate) in the model of a run, step by step.

    `text` defaults to the text that the run watched. Steps that were not watched with this text are computed from the
    checkpoints that are kept. Raises `SettingsError` for anything but a run folder, and if there is no text or no step;
    as `load` does; and `GenerationError` for a text that the model cannot read.
    """
    run = RunFolder(path_of(folder))
    kept = Checkpoints(run.checkpoints).steps()
    frames, left_out = read_frames(run.watch)
    if not kept and not frames:
        if run.settings_path.is_file():
            check_has_checkpoint(run)
        raise SettingsError(
            tr("{folder} has no checkpoints and no frames to make a film of", folder),
            advice=tr("Give the folder of a run (runs/poems)."),
        )
    if text is None:
        if not frames:
            raise SettingsError(
                tr("{folder} was trained without --watch: there is no text to show", folder),
                advice=tr("Give one with --text: it is read at the checkpoints that are kept."),
            )
        text = frames[-1].watched
    frames = [frame for frame in frames if frame.watched == text]
    there = {frame.step for frame in frames}
    frames += [_frame(run, text, step, device, threads) for step in kept if step not in there]
    losses = {line["step"]: line.get("heldout_loss") for line in read_log(run.metrics) if line["event"] == "evaluate"}
    known = {step: loss for step, loss in losses.items() if loss is not None}
    return film_view(frames, heldout_loss=known, left_out=left_out)


def _frame(run: RunFolder, text: str, step: int, device: str | None, threads: int | None) -> Frame:
    model = load_either(run.path, device=device, threads=threads, step=step)
    subject = subject_of(model)
    with model.runtime.applied():
        return take_frame(subject, read_watched(subject, text), step)
