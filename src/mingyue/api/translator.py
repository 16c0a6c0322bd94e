"""A model of pairs ready for use: translate, tell how likely a translation is, measure on a test set."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from mingyue.api.model import check_begun, damage_told, find_model, run_weights
from mingyue.bundle import Bundle, load_bundle, read_bundle_config
from mingyue.config import EncoderDecoderConfig, TranslateSettings
from mingyue.data import PairRows, heldout_pair_batches, load_pairs
from mingyue.data.unseen import to_ranges
from mingyue.errors import BundleError, DataError, GenerationError
from mingyue.generation import Translation, translate
from mingyue.generation.translating import Progress
from mingyue.models import EncoderDecoder
from mingyue.runtime import Runtime, choose_runtime
from mingyue.scoring import TranslationScores, translation_scores
from mingyue.text import Tokenizer
from mingyue.training import Evaluation, RunFolder, evaluate

_MOST_TOKENS = 1 << 12  # of the longer side, padded, in one pass of the loss


@dataclass(frozen=True)
class TranslationReport:
    """How well a model translates a test set."""

    scores: TranslationScores
    """BLEU, chrF and exact lines of `hypotheses`."""
    evaluation: Evaluation | None
    """Likelihood of the references, over `counted` pairs; None where that is no pair."""
    counted: int
    """Pairs with text on both sides that fit the context: those that training would use."""
    lines: int
    """Lines translated."""
    seconds: float
    """Time that translating took, without loading and without the likelihood."""
    hypotheses: list[str]
    """The translations, each one line."""

    @property
    def loss(self) -> float:
        """Nats per target token, end marks among them; not a number where no pair was counted."""
        return math.nan if self.evaluation is None else self.evaluation.loss

    @property
    def perplexity(self) -> float:
        """e to the loss."""
        return math.nan if self.evaluation is None else self.evaluation.perplexity

    @property
    def bits_per_byte(self) -> float:
        """Bits per UTF-8 byte of the references: comparable between tokenizers."""
        return math.nan if self.evaluation is None else self.evaluation.bits_per_byte

    def to_dict(self) -> dict[str, Any]:
        """For JSON, without the hypotheses; what is not a number becomes None."""
        names = ("loss", "perplexity", "bits_per_byte")
        values = {name: getattr(self, name) for name in names}
        return {
            **asdict(self.scores),
            **{name: None if math.isnan(value) else value for name, value in values.items()},
            "counted": self.counted,
            "tokens": 0 if self.evaluation is None else self.evaluation.tokens,
            "seconds": self.seconds,
        }


class Translator:
    """A trained model of pairs with its tokenizers. `mingyue.load_translator` makes it."""

    def __init__(self, bundle: Bundle[EncoderDecoder], *, checkpoint: int | None = None) -> None:
        self._bundle = bundle
        self.checkpoint = checkpoint
        """The step of the checkpoint that it is of; None = it is of a model folder."""
        self.notes: list[str] = []
        """Sentences about the latest call that a user should read (a line longer than the context, and the like)."""

    def __repr__(self) -> str:
        config, words = self.config, self.tokenizer
        return (
            f"<mingyue.Translator: {config.n_encoder_layers}+{config.n_layers} layers, width {config.d_model}, "
            f"context {config.context}, {words.kind} tokenizer of {words.vocab_size}>"
        )

    @property
    def config(self) -> EncoderDecoderConfig:
        """Every size and choice of the model."""
        return self.module.config

    @property
    def module(self) -> EncoderDecoder:
        """The PyTorch module."""
        return self._bundle.model

    @property
    def source_tokenizer(self) -> Tokenizer:
        """The tokenizer of the source side; the same object as `tokenizer` where both sides share a vocabulary."""
        return self._bundle.source_tokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the target side."""
        return self._bundle.tokenizer

    @property
    def training(self) -> dict[str, Any]:
        """What training.json says."""
        return self._bundle.training

    @property
    def unseen(self) -> tuple[int, ...]:
        """Ids that the training targets did not use: generated only with `allow_unseen`; none where it is not known."""
        return self._bundle.unseen

    def translate(
        self,
        lines: str | Sequence[str],
        settings: TranslateSettings | None = None,
        *,
        align: bool = False,
        first_line: int = 0,
        progress: Progress | None = None,
        **given: object,
    ) -> list[list[Translation]]:
        """Translate each line. `given` are fields of `TranslateSettings` by name; they win over `settings`.

        Returns `n_best` translations a line, the best first, in the order of the lines. `align`: with what the
        cross-attention looked at. `first_line`: how many lines of the same text came in earlier calls, which is what
        keeps draws (`sample`) the same however the text is cut into calls. `progress` gets the lines done and all.

        Raises `SettingsError`, `GenerationError`.
        """
        lines = [lines] if isinstance(lines, str) else list(lines)
        found = translate(
            self.module,
            self.source_tokenizer,
            self.tokenizer,
            lines,
            _settings(settings, given),
            unseen=self._bundle.unseen,
            align=align,
            first_line=first_line,
            progress=progress,
        )
        cut = [number for number, best in enumerate(found, start=first_line + 1) if any(one.truncated for one in best)]
        self.notes = [_cut_lines(cut, self.config.context)] if cut else []
        return found

    def loss(self, sources: Sequence[str], targets: Sequence[str]) -> Evaluation:
        """−Σ log P of the targets given their sources, each target token (and end mark) after the right ones before it.

        What a pair adds depends on no other pair. Raises `DataError` for no pairs or unequal counts, and
        `GenerationError` for a pair that does not fit the context.
        """
        _check_counts(sources, targets)
        rows = [self._rows(source, target) for source, target in zip(sources, targets, strict=True)]
        context = self.config.context
        for number, (source, target) in enumerate(rows, start=1):
            if max(len(source), len(target)) > context:
                raise GenerationError(
                    f"pair {number} has {len(source)} source and {len(target)} target tokens, "
                    f"the context holds {context}"
                )
        return self._evaluation(rows, targets)

    def evaluate(
        self,
        sources: Sequence[str],
        references: Sequence[str],
        settings: TranslateSettings | None = None,
        *,
        target_language: str | None = None,
        progress: Progress | None = None,
        **given: object,
    ) -> TranslationReport:
        """Translate the sources and compare with the references; also how likely the model finds the references.

        Every line counts for the scores (the translation of an empty line is empty). The likelihood counts the pairs
        that training would use: text on both sides, within the context; how many others there are is in `notes`.
        `target_language` chooses the words of BLEU, as `translation_scores` describes.

        Raises `DataError` for no lines or unequal counts, `MissingExtraError` without sacrebleu.
        """
        _check_counts(sources, references)
        chosen = _settings(settings, given)
        translation_scores(references[:1], references[:1])  # a missing extra is said now, not after minutes
        started = time.perf_counter()
        found = self.translate(sources, chosen, progress=progress)
        seconds = time.perf_counter() - started
        hypotheses = [one_line(best[0].text) for best in found]
        pairs = [(one, other) for one, other in zip(sources, references, strict=True) if one.strip() and other.strip()]
        rows = [(*self._rows(one, other), other) for one, other in pairs]
        fitting = [row for row in rows if max(len(row[0]), len(row[1])) <= self.config.context]
        self._tell_uncounted(len(sources) - len(pairs), len(pairs) - len(fitting))
        return TranslationReport(
            scores=translation_scores(hypotheses, references, target_language=target_language),
            evaluation=self._evaluation([row[:2] for row in fitting], [row[2] for row in fitting]) if fitting else None,
            counted=len(fitting),
            lines=len(sources),
            seconds=seconds,
            hypotheses=hypotheses,
        )

    def _rows(self, source: str, target: str) -> tuple[list[int], list[int]]:
        """Ids of both sides as the model was trained on them, the end mark last."""
        words, others = self.source_tokenizer, self.tokenizer
        return [*words.encode(source), words.eos_id], [*others.encode(target), others.eos_id]

    def _evaluation(self, rows: Sequence[tuple[list[int], list[int]]], targets: Sequence[str]) -> Evaluation:
        batches = heldout_pair_batches(
            PairRows.of([source for source, _ in rows], [target for _, target in rows]),
            budget=_MOST_TOKENS,
            pad_id=self.tokenizer.pad_id,
            bos_id=self.tokenizer.bos_id,
        )
        n_bytes = sum(len(target.encode("utf-8")) for target in targets)
        runtime = Runtime(self.module.embedding.weight.device, torch.float32, torch.get_num_threads())
        n_tokens = sum(len(target) for _, target in rows)
        result = evaluate(self.module, batches, runtime, bytes_per_token=n_bytes / n_tokens or math.nan)
        if math.isnan(result.nats):
            raise GenerationError(
                "the model's output is not a number (NaN)",
                advice="Its weights are damaged, or it was saved after training diverged: use an earlier checkpoint.",
            )
        return result

    def _tell_uncounted(self, empty: int, long: int) -> None:
        reasons = [f"{count:,} with {why}" for count, why in ((empty, "an empty side"),) if count]
        if long:
            reasons.append(f"{long:,} with more than {self.config.context:,} tokens on a side")
        if reasons:
            self.notes.append(f"Not counted in the loss: {', '.join(reasons)}.")


def load_translator(
    path: str | Path, *, device: str | None = None, threads: int | None = None, step: int | None = None
) -> Translator:
    """Load a model folder, or the model of a run folder (of its best checkpoint, if the run has not ended).

    `device`, `threads` and `step` as in `load`. Raises `BundleError` (also for a model of one text),
    `CheckpointError`, `SettingsError`.
    """
    chosen = choose_runtime(device, "fp32", threads).device
    place = find_model(path, step)
    if isinstance(place, Path):
        return Translator(load_bundle(place, EncoderDecoder, device=chosen))
    bundle, checkpoint = _from_checkpoint(place, chosen, step)
    return Translator(bundle, checkpoint=checkpoint)


def translates(path: str | Path) -> bool:
    """Whether a model folder or run folder holds a model of pairs; if not, it holds one of one text.

    Looks at its config or settings alone. Raises `BundleError`, `SettingsError`.
    """
    place = find_model(path)
    if isinstance(place, Path):
        return isinstance(read_bundle_config(place), EncoderDecoderConfig)
    return place.read_settings().pairs.given


def one_line(text: str) -> str:
    """`text` with a space for every line end in it: a translation must not shift those that follow."""
    return " ".join(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))


def _from_checkpoint(folder: RunFolder, device: torch.device, step: int | None) -> tuple[Bundle[EncoderDecoder], int]:
    from mingyue.api.pair_run import pair_config

    settings = folder.read_settings()
    if not settings.pairs.given:
        raise BundleError(
            f"{folder.path} is a run on texts, not on pairs: its model does not translate",
            advice="Use `mingyue generate`, or in Python load.",
        )
    check_begun(folder)
    with damage_told():
        source_tokenizer, tokenizer, corpus, _ = load_pairs(folder.data)
    model = EncoderDecoder(pair_config(settings, corpus))
    step, weights = run_weights(folder, step)
    model.load_state_dict(weights)
    training = {"unseen": to_ranges(corpus.target_unseen)}
    return Bundle(model.to(device).eval(), tokenizer, training, source_tokenizer), step


def _settings(settings: TranslateSettings | None, given: dict[str, object]) -> TranslateSettings:
    base = settings or TranslateSettings()
    return TranslateSettings.read({**base.model_dump(), **given}, source="the arguments") if given else base


def _check_counts(sources: Sequence[str], targets: Sequence[str]) -> None:
    if len(sources) != len(targets):
        raise DataError(
            f"{len(sources):,} source texts and {len(targets):,} targets: "
            f"number {min(len(sources), len(targets)) + 1:,} has no partner",
            advice="Text n of one side belongs to text n of the other.",
        )
    if not sources:
        raise DataError("there are no pairs: 0 lines", advice="Give at least one source text and its target.")


def _cut_lines(numbers: Sequence[int], context: int) -> str:
    shown = ", ".join(f"{number:,}" for number in numbers[:8]) + (", …" if len(numbers) > 8 else "")
    what = f"Line {shown} has" if len(numbers) == 1 else f"{len(numbers):,} lines ({shown}) have"
    return f"{what} more tokens than the context of {context:,}: translated from the first ones."
