"""A model ready for use: write, score, look at logits."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mingyue.bundle import Bundle, load_bundle
from mingyue.config import GenerateSettings, ModelConfig, TrainSettings
from mingyue.data import load_corpus
from mingyue.data.unseen import to_ranges
from mingyue.errors import BundleError, CheckpointError, DataError, GenerationError
from mingyue.generation import Event, Generation, generate, stream
from mingyue.models import DecoderOnly
from mingyue.runtime import choose_runtime
from mingyue.scoring import Score, score
from mingyue.text import Tokenizer
from mingyue.training import Checkpoints, RunFolder
from mingyue.training.sizing import model_config


class Model:
    """A trained model with its tokenizer. `mingyue.load` makes it."""

    def __init__(self, bundle: Bundle[DecoderOnly], *, checkpoint: int | None = None) -> None:
        self._bundle = bundle
        self.checkpoint = checkpoint
        """The step of the checkpoint that it is of; None = it is of a model folder."""
        self.notes: list[str] = []
        """Sentences about the latest call that a user should read (a prompt longer than the context, and the like)."""

    def __repr__(self) -> str:
        config, words = self.config, self.tokenizer
        return (
            f"<mingyue.Model: {config.n_layers} layers, width {config.d_model}, context {config.context}, "
            f"{words.kind} tokenizer of {words.vocab_size}>"
        )

    @property
    def config(self) -> ModelConfig:
        """Every size and choice of the model."""
        return self.module.config

    @property
    def module(self) -> DecoderOnly:
        """The PyTorch module."""
        return self._bundle.model

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        return self._bundle.tokenizer

    @property
    def training(self) -> dict[str, Any]:
        """What training.json says."""
        return self._bundle.training

    @property
    def unseen(self) -> tuple[int, ...]:
        """Ids that the training text did not use: generated only with `allow_unseen`; none where it is not known."""
        return self._bundle.unseen

    @property
    def starts_with_bos(self) -> bool:
        """Whether the start mark stands before a text."""
        return self._bundle.starts_with_bos

    def generate(
        self,
        prompts: str | Sequence[str] = "",
        settings: GenerateSettings | None = None,
        *,
        logprobs: bool = False,
        **given: object,
    ) -> list[Generation]:
        """Continue each prompt. `given` are fields of `GenerateSettings` by name; they win over `settings`.

        Returns `samples` texts a prompt, in the order of the prompts. Raises `SettingsError`, `GenerationError`.
        """
        self.notes = []
        return generate(
            self.module,
            self.tokenizer,
            prompts,
            _settings(settings, given),
            starts_with_bos=self._bundle.starts_with_bos,
            begin_id=self._bundle.begin_id,
            unseen=self._bundle.unseen,
            logprobs=logprobs,
            note=self.notes.append,
        )

    def stream(self, prompt: str = "", settings: GenerateSettings | None = None, **given: object) -> Iterator[str]:
        """The same for one prompt, piece by piece as it is written; the pieces join to exactly the text."""
        settings = _settings(settings, given)
        if settings.samples != 1:
            raise GenerationError(f"a stream writes one text, not {settings.samples}", advice="Use generate instead.")
        return (event.text for event in self.events(prompt, settings) if event.text)

    def events(self, prompts: str | Sequence[str], settings: GenerateSettings | None = None) -> Iterator[Event]:
        """Every token of every text as it is written, with the finished text at its last token."""
        self.notes = []
        return stream(
            self.module,
            self.tokenizer,
            prompts,
            settings,
            starts_with_bos=self._bundle.starts_with_bos,
            begin_id=self._bundle.begin_id,
            unseen=self._bundle.unseen,
            note=self.notes.append,
        )

    def score(self, text: str, *, stride: int | None = None) -> Score:
        """log P of every token of a text and of the whole; a text longer than the context in windows of `stride`."""
        return score(self.module, self.tokenizer, text, stride=stride, starts_with_bos=self._bundle.starts_with_bos)

    @torch.inference_mode()
    def logits(self, text: str) -> Tensor:
        """Logits of the next token after each token of `text`, [T, V] (after the start mark too, where texts have one).

        Raises `GenerationError` when the text does not fit the context, or when there is nothing to read.
        """
        ids = self.tokenizer.encode(text)
        if self._bundle.starts_with_bos:
            ids = [self.tokenizer.bos_id, *ids]
        if not ids:
            raise GenerationError("there is nothing to read: the text is empty")
        if len(ids) > self.config.context:
            raise GenerationError(f"the text has {len(ids)} tokens, the context holds {self.config.context}")
        ids_BT = torch.tensor([ids], device=self.module.embedding.weight.device)
        return self.module(ids_BT)[0]


def load(path: str | Path, *, device: str | None = None, threads: int | None = None, step: int | None = None) -> Model:
    """Load a model folder, or the model of a run folder (of its best checkpoint, if the run has not ended).

    `device` and `threads` as in the settings of a run. `step`: the model of a run as it was after so many steps, where
    that checkpoint is kept. Raises `BundleError`, `CheckpointError`, `SettingsError`.
    """
    chosen = choose_runtime(device, "fp32", threads).device
    place = find_model(path, step)
    if isinstance(place, Path):
        return Model(load_bundle(place, device=chosen))
    bundle, checkpoint = _from_checkpoint(place, chosen, step)
    return Model(bundle, checkpoint=checkpoint)


def find_model(path: str | Path, step: int | None = None) -> Path | RunFolder:
    """The model folder that `path` is or holds; for a run that has not ended its folder, whose checkpoints hold it.

    With a `step`, always the folder of a run. Raises `BundleError` if `path` is neither a model folder nor a run
    folder, and for a step of what is no run folder.
    """
    path = Path(path)
    folder = RunFolder(path)
    if step is not None and path.exists():
        if folder.settings_path.is_file() or folder.checkpoints.is_dir():
            return folder
        raise BundleError(
            f"{path} is not the folder of a run: it holds no checkpoints, so there is no step {step:,} to choose",
            advice="Give the folder of the run (runs/poems).",
        )
    if (path / "config.json").is_file():
        return path
    if folder.model.is_dir():
        return folder.model
    if folder.settings_path.is_file():
        return folder
    what = "is neither a model folder nor a run folder" if path.exists() else "does not exist"
    raise BundleError(
        f"{path} {what}", advice="Give the folder of a run (runs/poems) or of a model (runs/poems/model)."
    )


def check_begun(folder: RunFolder) -> None:
    """Raise `BundleError` for a run that has nothing to look at yet: it is being prepared, or takes its first steps."""
    if folder.begun:
        return
    if folder.planned:
        raise BundleError(
            f"{folder.path} has no checkpoint yet: the run takes its first steps, or was stopped before one was kept",
            advice="Wait for its first checkpoint, or start it again with `mingyue train`.",
        )
    raise BundleError(
        f"{folder.path} has no model in it yet: the run is being prepared, or was stopped before its text was prepared",
        advice="Wait until it trains, or start it again with `mingyue train`: what is there will not be in its way.",
    )


@contextmanager
def damage_told() -> Generator[None]:
    """Of a run whose prepared text is damaged, `DataError` with what a user of a run can do."""
    try:
        yield
    except DataError as error:
        raise DataError(
            error.message, advice="`mingyue resume` prepares it again, where its sources are still there."
        ) from error


def run_weights(folder: RunFolder, step: int | None = None) -> tuple[int, dict[str, Tensor]]:
    """Step and weights of a run after `step` steps; none: of its best checkpoint (its latest before any evaluation).

    Raises `CheckpointError`; for a step that is not kept it lists those that are.
    """
    checkpoints = Checkpoints(folder.checkpoints)
    if step is not None:
        kept = checkpoints.steps()
        if step not in kept:
            there = f"there are those of steps {', '.join(f'{one:,}' for one in kept)}" if kept else "there is none"
            raise CheckpointError(
                f"{folder.path} has no checkpoint of step {step:,}: {there}",
                advice="A run keeps its latest and its best checkpoints; --keep sets how many.",
            )
        return step, checkpoints.load(step).model
    checkpoint, _ = checkpoints.load_latest()
    best = checkpoint.state["counters"]["best_step"]
    if best is not None and best != checkpoint.step:
        checkpoint = checkpoints.load(best)
    return checkpoint.step, checkpoint.model


def run_config(settings: TrainSettings, vocab_size: int) -> ModelConfig:
    """The config of a run whose settings are complete, as run.toml holds them."""
    depth, context = settings.model.depth, settings.model.context
    if depth is None or context is None:
        raise BundleError(
            "the run was stopped before it chose its sizes: there is no model in it yet",
            advice="Start it again with `mingyue train`: what is there will not be in its way.",
        )
    return model_config(settings, vocab_size=vocab_size, depth=depth, context=context)


def _from_checkpoint(folder: RunFolder, device: torch.device, step: int | None) -> tuple[Bundle[DecoderOnly], int]:
    settings = folder.read_settings()
    if settings.pairs.given:
        raise BundleError(
            f"{folder.path} is a run on pairs: its model does not write from a prompt",
            advice="Use `mingyue translate`, or in Python load_translator.",
        )
    check_begun(folder)
    with damage_told():
        tokenizer, corpus, _ = load_corpus(folder.data)
    model = DecoderOnly(run_config(settings, tokenizer.vocab_size))
    step, weights = run_weights(folder, step)
    model.load_state_dict(weights)
    training = {
        "starts_with_bos": corpus.starts_with_bos,
        "begin_id": corpus.begin_id,
        "unseen": to_ranges(corpus.unseen),
    }
    return Bundle(model.to(device).eval(), tokenizer, training), step


def _settings(settings: GenerateSettings | None, given: dict[str, object]) -> GenerateSettings:
    base = settings or GenerateSettings()
    return GenerateSettings.read({**base.model_dump(), **given}, source="the arguments") if given else base
