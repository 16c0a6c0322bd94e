"""Reading a model: from a model folder, or from a checkpoint of a run that has not ended."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

from mingyue.bundle import Bundle, is_model_folder, load_bundle, read_bundle_config
from mingyue.config import Count, EncoderDecoderConfig, TrainSettings, checked, nearest_path
from mingyue.data import load_corpus, load_pairs
from mingyue.data.unseen import to_ranges
from mingyue.errors import BundleError, CheckpointError, DataError, MingyueError, TokenizerError
from mingyue.models import DecoderOnly, EncoderDecoder, cannot_read, empty_model
from mingyue.paths import path_of
from mingyue.runs.model_configs import pair_config, run_config
from mingyue.training import Checkpoints, RunFolder
from mingyue.words import tr

ModuleType = TypeVar("ModuleType", DecoderOnly, EncoderDecoder)


def translates(path: str | Path) -> bool:
    """Whether a model folder or run folder holds an encoder-decoder model; if not, it holds a decoder-only one.

    Reads the config or the settings only. Raises `BundleError`, `SettingsError`.
    """
    found = find_model(path)
    if isinstance(found, Path):
        return isinstance(read_bundle_config(found), EncoderDecoderConfig)
    return found.read_settings().pairs.given


def find_model(path: str | Path, step: int | None = None) -> Path | RunFolder:
    """The model folder that `path` is or contains; for a run that has not ended, the run folder with its checkpoints.

    With a `step`, always the run folder. Raises `BundleError` if `path` is neither a model folder nor a run folder,
    and if a `step` is given for a folder without checkpoints.
    """
    path = path_of(path)
    try:
        return _find_model(path, step)
    except OSError as error:  # permission denied, a name that is too long
        raise cannot_read(path, error) from error


def _find_model(path: Path, step: int | None) -> Path | RunFolder:
    folder = RunFolder(path)
    if step is not None and path.exists():
        if folder.settings_path.is_file() or folder.checkpoints.is_dir():
            return folder
        raise BundleError(
            tr(
                "{path} is not the folder of a run: it holds no checkpoints, so there is no step {step:,} to choose",
                path,
                step,
            ),
            advice=tr("Give the folder of the run (runs/poems)."),
        )
    if (path / "config.json").is_file() or (not path.exists() and is_model_folder(path)):
        return path
    if is_model_folder(folder.model):
        return folder.model
    if folder.settings_path.is_file():
        return folder
    advice = tr("Give the folder of a run (runs/poems) or of a model (runs/poems/model).")
    if path.exists():
        raise BundleError(tr("{path} is neither a model folder nor a run folder", path), advice=advice)
    near = nearest_path(path)
    raise BundleError(tr("{path} does not exist", path), advice=tr("Did you mean {near}?", near) if near else advice)


def check_has_checkpoint(folder: RunFolder) -> None:
    """Raise `BundleError` for a run without any checkpoint: it is being prepared, or in its first steps."""
    if folder.begun:
        return
    if folder.planned:
        raise BundleError(
            tr(
                "{path} has no checkpoint yet: the run is in its first steps, or was stopped before it saved one",
                folder.path,
            ),
            advice=tr("Wait for its first checkpoint, or start it again with `mingyue train`."),
        )
    raise BundleError(
        tr(
            "{path} has no model in it yet: the run is being prepared, or was stopped before its text was prepared",
            folder.path,
        ),
        advice=tr(
            "Wait until it trains, or start it again with `mingyue train`; the files that are there do not interfere."
        ),
    )


@dataclass(frozen=True)
class ModelKind(Generic[ModuleType]):
    """The differences between the two architectures in loading."""

    of_pairs: bool
    model_class: type[ModuleType]
    untrained: Callable[[RunFolder, TrainSettings], Bundle[ModuleType]]
    """The tokenizers of a run, with a model of its sizes, without weights. Raises `DataError` for damaged data."""
    refusal: tuple[str, str]
    """Message and advice for a run of the other kind."""


def _untrained_decoder(folder: RunFolder, settings: TrainSettings) -> Bundle[DecoderOnly]:
    tokenizer, corpus, _ = load_corpus(folder.data)
    model = empty_model(run_config(settings, tokenizer.vocab_size))
    training = {
        "starts_with_bos": corpus.starts_with_bos,
        "begin_id": corpus.begin_id,
        "unseen": to_ranges(corpus.unseen),
    }
    return Bundle(model.config, tokenizer, training, model=model)


def _untrained_encoder_decoder(folder: RunFolder, settings: TrainSettings) -> Bundle[EncoderDecoder]:
    source_tokenizer, tokenizer, corpus, _ = load_pairs(folder.data)
    model = empty_model(pair_config(settings, corpus))
    training = {"unseen": to_ranges(corpus.target_unseen)}
    return Bundle(model.config, tokenizer, training, source_tokenizer, model=model)


DECODER_ONLY = ModelKind(
    of_pairs=False,
    model_class=DecoderOnly,
    untrained=_untrained_decoder,
    refusal=(
        tr("is a run on pairs: its model does not continue prompts"),
        tr("Use `mingyue translate`, or in Python load_translator."),
    ),
)
ENCODER_DECODER = ModelKind(
    of_pairs=True,
    model_class=EncoderDecoder,
    untrained=_untrained_encoder_decoder,
    refusal=(
        tr("is a run on text, not on pairs: its model does not translate"),
        tr("Use `mingyue generate`, or in Python load."),
    ),
)


def read_bundle(
    kind: ModelKind[ModuleType], path: str | Path, device: torch.device, step: int | None
) -> tuple[Bundle[ModuleType], int | None]:
    """The model in a folder, of that kind, and the step of its checkpoint (None: it is from a model folder).

    Raises as `mingyue.load` does.
    """
    found = find_model(path, checked("step", step, Count | None))
    if isinstance(found, Path):
        try:
            return load_bundle(found, kind.model_class, device=device), None
        except (BundleError, TokenizerError) as error:
            raise _with_way_out(error, found, kind) from error
    settings = found.read_settings()
    if settings.pairs.given is not kind.of_pairs:
        message, advice = kind.refusal
        raise BundleError(tr("{path} {message}", found.path, message), advice=advice)
    check_has_checkpoint(found)
    try:
        bundle = kind.untrained(found, settings)
    except DataError as error:
        raise DataError(
            error.message, advice=tr("`mingyue resume` prepares the data again, if the sources are still available.")
        ) from error
    step, weights, notes = _run_weights(found, step)
    bundle.model.load_state_dict(weights, strict=True, assign=True)
    bundle.model.to(device).eval()
    bundle.notes = notes
    return bundle, step


def _with_way_out(
    error: BundleError | TokenizerError, folder: Path, kind: ModelKind[ModuleType]
) -> BundleError | TokenizerError:
    """The error of a damaged model folder in a run, with the advice to have the run write it again."""
    run = RunFolder(folder.absolute().parent)
    if run.model.name != folder.name or not run.settings_path.is_file() or not run.begun:
        return error
    with suppress(MingyueError):
        if isinstance(read_bundle_config(folder), EncoderDecoderConfig) is not kind.of_pairs:
            return error  # the model is whole, and of the other kind
    again = tr("`mingyue resume {folder}` writes the model of a run again.", folder.parent)
    return type(error)(error.message, advice=again)


def _run_weights(folder: RunFolder, step: int | None) -> tuple[int, dict[str, Tensor], tuple[str, ...]]:
    """(step, weights, notes) of a run after `step` steps (default: its best checkpoint so far).

    Raises `CheckpointError`; for a step that is not kept it lists those that are.
    """
    checkpoints = Checkpoints(folder.checkpoints)
    if step is None:
        step, weights, notes = checkpoints.load_best()
        return (
            step,
            weights,
            (tr("{path}: this is the model of its checkpoint of step {step:,}.", folder.path, step), *notes),
        )
    kept = checkpoints.steps()
    if step not in kept:
        listed = tr("the steps kept are {kept}", ", ".join(f"{one:,}" for one in kept)) if kept else tr("none is kept")
        raise CheckpointError(
            tr("{path} has no checkpoint of step {step:,}: {listed}", folder.path, step, listed),
            advice=tr("A run keeps its latest and its best checkpoints; --keep sets how many."),
        )
    return step, checkpoints.load_weights(step), ()
