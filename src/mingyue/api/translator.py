"""An encoder-decoder model ready for use: translate, compute the loss of translations, evaluate on a test set."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from mingyue.api.caller import speaks_python
from mingyue.api.loaded_model import LoadedModel, merge_settings
from mingyue.bundle import Bundle
from mingyue.config import EncoderDecoderConfig, TranslateSettings, checked_texts
from mingyue.data import PairRows, heldout_pair_batches
from mingyue.errors import DataError, GenerationError
from mingyue.generation import Translation, translate
from mingyue.generation.backends import onnx_decoder
from mingyue.generation.translating import Progress
from mingyue.models import EncoderDecoder
from mingyue.reprs import facts_html
from mingyue.runtime import Runtime
from mingyue.scoring import TranslationScores, translation_scores
from mingyue.training import Evaluation, evaluate
from mingyue.words import listed, tr

if TYPE_CHECKING:
    from mingyue.generation.backends import BackendKind
    from mingyue.generation.onnx_decoding import OnnxDecoder
    from mingyue.graphs import WeightKind

_MAX_TOKENS = 1 << 12  # padded tokens of the longer side in one forward pass of the loss


@dataclass(frozen=True, repr=False)
class TranslationReport:
    """How well a model translates a test set."""

    scores: TranslationScores
    """BLEU, chrF and exact lines of `hypotheses`."""
    evaluation: Evaluation | None
    """Loss of the references over `counted` pairs; None if no pair was counted."""
    counted: int
    """Pairs with text on both sides that fit the context: those that training would use."""
    lines: int
    """Lines translated."""
    seconds: float
    """Time to translate, without loading the model and without computing the loss."""
    hypotheses: list[str]
    """The translations, each one line."""

    @property
    def loss(self) -> float:
        """Nats per target token, EOS included; NaN if no pair was counted."""
        return math.nan if self.evaluation is None else self.evaluation.loss

    @property
    def perplexity(self) -> float:
        """e to the loss."""
        return math.nan if self.evaluation is None else self.evaluation.perplexity

    @property
    def bits_per_byte(self) -> float:
        """Bits per UTF-8 byte of the references: comparable between tokenizers."""
        return math.nan if self.evaluation is None else self.evaluation.bits_per_byte

    def __repr__(self) -> str:
        return f"<mingyue.TranslationReport: {', '.join(f'{name} {value}' for name, value in self.facts().items())}>"

    def _repr_html_(self) -> str:
        """For notebooks: the scores."""
        return facts_html("TranslationReport", self.facts())

    def facts(self) -> dict[str, object]:
        """The most important numbers, by name."""
        scores = self.scores
        return {
            "lines": f"{self.lines:,}",
            "BLEU": f"{scores.bleu:.2f}",
            "chrF": f"{scores.chrf:.2f}",
            "exact": f"{scores.exact:.1%}",
            "loss": f"{self.loss:.4f}",
        }

    def to_dict(self) -> dict[str, Any]:
        """For JSON, without the hypotheses; NaN becomes None."""
        names = ("loss", "perplexity", "bits_per_byte")
        values = {name: getattr(self, name) for name in names}
        return {
            **asdict(self.scores),
            **{name: None if math.isnan(value) else value for name, value in values.items()},
            "counted": self.counted,
            "tokens": 0 if self.evaluation is None else self.evaluation.tokens,
            "seconds": self.seconds,
        }


class Translator(LoadedModel[EncoderDecoderConfig, EncoderDecoder, "OnnxDecoder"]):
    """A trained encoder-decoder model with its tokenizers. `mingyue.load_translator` returns one."""

    def __init__(
        self,
        bundle: Bundle[EncoderDecoder],
        *,
        checkpoint: int | None = None,
        runtime: Runtime | None = None,
        backend: BackendKind | None = None,
        weights: WeightKind = "fp32",
    ) -> None:
        """`backend` and `weights` as in `mingyue.load`."""
        super().__init__(bundle, checkpoint=checkpoint, runtime=runtime, backend=backend, weights=weights)
        self.source_tokenizer = bundle.source_tokenizer
        """The tokenizer of the source side; the same object as `tokenizer` where both sides share a vocabulary."""

    def _open_onnx(self, sha256: str | None, threads: int) -> OnnxDecoder:
        return onnx_decoder(self.module, kind=self._kind, threads=threads, sha256=sha256)

    @speaks_python()
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
        """Translate each line. `given` are fields of `TranslateSettings` by name; they override `settings`.

        Returns `n_best` translations per line, the best first, in the order of the lines. `align` adds the weights of
        the cross-attention. `first_line`: the number of lines of the same text in earlier calls; with it, sampled
        translations (`sample`) do not depend on how the text is divided into calls. `progress` receives the number of
        lines done and of all lines.

        Raises `SettingsError`, `GenerationError`.
        """
        lines = checked_texts("lines", lines)
        notes = self._new_notes()
        chosen = merge_settings(TranslateSettings, settings, given)
        with self.runtime.applied():
            found = translate(
                self.module,
                self.source_tokenizer,
                self.tokenizer,
                lines,
                chosen,
                unseen=self.unseen,
                align=align,
                first_line=first_line,
                progress=progress,
                decoder=self._onnx(),
            )
        blank = [number for number, line in enumerate(lines, start=first_line + 1) if line and not line.strip()]
        if blank:
            notes.append(tr("Lines of white space only, which stay empty: {blank}.", _shown(blank)))
        cut = [number for number, best in enumerate(found, start=first_line + 1) if any(one.truncated for one in best)]
        if cut:
            notes.append(_cut_lines(cut, self.config.context))
        unfinished = {
            number: max(len(one.tokens) for one in best if not one.finished)
            for number, best in enumerate(found, start=first_line + 1)
            if not all(one.finished for one in best)
        }
        if unfinished:
            notes.append(_unfinished(unfinished, chosen.extra_tokens, self.config.context))
        return found

    @speaks_python()
    def loss(self, sources: Sequence[str], targets: Sequence[str]) -> Evaluation:
        """Loss of the targets given their sources: −Σ log P of each target token and EOS, given those before it.

        The loss of a pair does not depend on the other pairs. Raises `DataError` for no pairs or unequal counts, and
        `GenerationError` for a pair that does not fit the context.
        """
        self._new_notes()
        _check_counts(sources, targets)
        rows = [self._rows(source, target) for source, target in zip(sources, targets, strict=True)]
        context = self.config.context
        for number, (source, target) in enumerate(rows, start=1):
            if max(len(source), len(target)) > context:
                raise GenerationError(
                    tr(
                        "pair {number} has {n_source} source and {n_target} target tokens, the context holds {context}",
                        number,
                        len(source),
                        len(target),
                        context,
                    )
                )
        return self._evaluation(rows, targets)

    @speaks_python()
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
        """Translate the sources and compare with the references; also compute the loss of the references.

        Every line counts for the scores (the translation of an empty line is empty). The loss counts the pairs that
        training would use: text on both sides, within the context; the number of other pairs is in `notes`. PyTorch
        computes the loss, with fp32 weights, whatever the back end of the translations.
        `target_language` chooses the tokenizer of BLEU, as `translation_scores` describes.

        Raises `DataError` for no lines or unequal counts, `MissingExtraError` without sacrebleu.
        """
        _check_counts(sources, references)
        chosen = merge_settings(TranslateSettings, settings, given)
        translation_scores(references[:1], references[:1])  # fails now, not after minutes, where sacrebleu is missing
        started = time.perf_counter()
        found = self.translate(sources, chosen, progress=progress)
        seconds = time.perf_counter() - started
        hypotheses = [one_line(best[0].text) for best in found]
        pairs = [(one, other) for one, other in zip(sources, references, strict=True) if one.strip() and other.strip()]
        rows = [(*self._rows(one, other), other) for one, other in pairs]
        fitting = [row for row in rows if max(len(row[0]), len(row[1])) <= self.config.context]
        self._note_uncounted(len(sources) - len(pairs), len(pairs) - len(fitting))
        scores = translation_scores(hypotheses, references, target_language=target_language)
        if self._kind == "int8":
            self.note(tr("The scores are those of the int8 weights, the loss that of the fp32 weights."))
        if (explained := scores.explain(references, target_language=target_language)) is not None:
            self.note(explained)
        return TranslationReport(
            scores=scores,
            evaluation=self._evaluation([row[:2] for row in fitting], [row[2] for row in fitting]) if fitting else None,
            counted=len(fitting),
            lines=len(sources),
            seconds=seconds,
            hypotheses=hypotheses,
        )

    def _rows(self, source: str, target: str) -> tuple[list[int], list[int]]:
        """Ids of both sides as in training: EOS at the end."""
        return (
            [*self.source_tokenizer.encode(source), self.source_tokenizer.eos_id],
            [*self.tokenizer.encode(target), self.tokenizer.eos_id],
        )

    def _evaluation(self, rows: Sequence[tuple[list[int], list[int]]], targets: Sequence[str]) -> Evaluation:
        batches = heldout_pair_batches(
            PairRows.of([source for source, _ in rows], [target for _, target in rows]),
            budget=_MAX_TOKENS,
            pad_id=self.tokenizer.pad_id,
            bos_id=self.tokenizer.bos_id,
        )
        n_bytes = sum(len(target.encode("utf-8")) for target in targets)
        runtime = Runtime(self.module.embedding.weight.device, torch.float32, self.runtime.threads)
        n_tokens = sum(len(target) for _, target in rows)
        with self.runtime.applied():
            result = evaluate(self.module, batches, runtime, bytes_per_token=n_bytes / n_tokens or math.nan)
        if math.isnan(result.nats):
            raise GenerationError(
                tr("the model's output is NaN"),
                advice=tr(
                    "Its weights are damaged, or it was saved after training diverged: use an earlier checkpoint."
                ),
            )
        return result

    def _note_uncounted(self, empty: int, long: int) -> None:
        reasons = [tr("{count:,} with {why}", count, why) for count, why in ((empty, tr("an empty side")),) if count]
        if long:
            reasons.append(tr("{long:,} with more than {context:,} tokens on a side", long, self.config.context))
        if reasons:
            self.note(tr("Not counted in the loss: {reasons}.", listed(reasons)))


def one_line(text: str) -> str:
    """`text` with every line break replaced by a space, so that a translation takes one line."""
    return " ".join(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))


def _check_counts(sources: Sequence[str], targets: Sequence[str]) -> None:
    if len(sources) != len(targets):
        raise DataError(
            tr(
                "{n_sources:,} source texts and {n_targets:,} targets: number {number:,} has no partner",
                len(sources),
                len(targets),
                min(len(sources), len(targets)) + 1,
            ),
            advice=tr("Text n of one side is paired with text n of the other."),
        )
    if not sources:
        raise DataError(tr("there are no pairs: 0 lines"), advice=tr("Give at least one source text and its target."))


def _cut_lines(numbers: Sequence[int], context: int) -> str:
    what = (
        tr("Line {numbers} has", _shown(numbers))
        if len(numbers) == 1
        else tr("{n_numbers:,} lines ({numbers}) have", len(numbers), _shown(numbers))
    )
    return tr("{what} more tokens than the context of {context:,}: translated from the first ones.", what, context)


def _unfinished(lengths: Mapping[int, int], extra_tokens: int, context: int) -> str:
    """A sentence about translations that were cut at their largest length; `lengths` in tokens, by line number."""
    numbers, full = list(lengths), [number for number, length in lengths.items() if length >= context]
    one = len(numbers) == 1
    what = (
        tr("The translation of line {numbers} is", _shown(numbers))
        if one
        else tr("{n_numbers:,} translations are", len(numbers))
    )
    where = "" if one else tr(" (lines {numbers})", _shown(numbers))
    if len(full) == len(numbers):
        return tr("{what} cut at the context of {context:,} tokens, without an end{where}.", what, context, where)
    more = tr(" (the context of {context:,} is the most)", context) if full else ""
    return tr(
        "{what} cut at the tokens of the line + {extra_tokens:,}, without an end{where}. A "
        "larger --extra-tokens lifts that limit{more}.",
        what,
        extra_tokens,
        where,
        more,
    )


def _shown(numbers: Sequence[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers[:8]) + (", …" if len(numbers) > 8 else "")
