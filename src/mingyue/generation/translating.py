"""Translation of lines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mingyue.config import TranslateSettings
from mingyue.errors import GenerationError
from mingyue.generation.allowed import AllowedTokens
from mingyue.generation.beam import beam_search
from mingyue.generation.decoding import Decoder, TorchDecoder
from mingyue.generation.evaluating import evaluating
from mingyue.generation.hypotheses import Hypothesis, SourceBatch
from mingyue.generation.translation_sampling import sample_translations
from mingyue.nn import Taps
from mingyue.reprs import shortened, text_html
from mingyue.words import tr

if TYPE_CHECKING:
    from mingyue.models import EncoderDecoder
    from mingyue.text import Tokenizer

Progress = Callable[[int, int], None]


@dataclass(frozen=True, repr=False)
class Translation:
    """A translation of one line."""

    text: str
    score: float
    """log_prob / lp(number of tokens), by which the translations of a line are ranked."""
    log_prob: float
    """log P (natural) of the translation under the model, EOS included."""
    finished: bool
    """Whether it ends with EOS; if not, it was cut at the length limit."""
    tokens: tuple[str, ...]
    """The generated tokens in readable form; a finished translation includes EOS."""
    source_tokens: tuple[str, ...]
    """The source tokens in readable form, EOS included."""
    truncated: bool = False
    """Whether the line was cut because it has more tokens than the context."""
    alignment: Tensor | None = field(default=None, compare=False)
    """[tokens, source tokens]: cross-attention weights for each token; each row sums to 1. None unless requested."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON; without `alignment` where there is none."""
        values = asdict(replace(self, alignment=None))
        if self.alignment is None:
            del values["alignment"]
        else:
            values["alignment"] = self.alignment.tolist()
        return values

    def __repr__(self) -> str:
        cut = "" if self.finished else tr(", cut at the length limit")
        return f"<mingyue.Translation: {shortened(self.text)}, log P {self.log_prob:.2f}{cut}>"

    def _repr_html_(self) -> str:
        """For notebooks: the translation, and its log P."""
        return text_html(self.text, tr("log P {log_prob:.2f}", self.log_prob) + ("" if self.finished else " (cut)"))


def translate(
    model: EncoderDecoder,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    lines: Sequence[str],
    settings: TranslateSettings | None = None,
    *,
    unseen: Collection[int] = (),
    align: bool = False,
    first_line: int = 0,
    progress: Progress | None = None,
    decoder: Decoder | None = None,
) -> list[list[Translation]]:
    """Translate each line; returns `n_best` translations per line, the best first (with `sample`: in sampling order).

    The result depends on the line and the settings (with `sample` also on the index of the line, counted from
    `first_line`, so that a text may be passed in several calls), never on the batch. The translation of a line without
    text (empty, or only white space) is empty. A line longer than the context is cut, and its translations are marked
    `truncated`. `decoder` computes the steps; default: PyTorch. `align` adds the weights of the cross-attention of the
    last block, averaged over its heads. `unseen`: ids that do not occur in the training targets, which are generated
    only with `allow_unseen`. `progress` receives the number of lines done and of all lines.

    Raises `GenerationError` when a line has a token id outside the model's vocabulary, or the model's output is NaN.
    """
    settings = settings or TranslateSettings()
    all_ids = [source_tokenizer.encode(line) if line.strip() else [] for line in lines]
    max_ids = model.config.context - 1  # and EOS
    sources = [[*ids[:max_ids], source_tokenizer.eos_id] if ids else [] for ids in all_ids]
    found = _find_hypotheses(
        model,
        sources,
        settings,
        bos_id=target_tokenizer.bos_id,
        eos_id=target_tokenizer.eos_id,
        pad_id=target_tokenizer.pad_id,
        n_target_ids=target_tokenizer.vocab_size,
        unseen=() if settings.allow_unseen else unseen,
        steps_SV=target_tokenizer.utf8_steps if settings.valid_utf8 else None,
        align=align,
        decoder=decoder,
        first_line=first_line,
        progress=progress,
    )
    nothing = Translation("", 0.0, 0.0, True, (), ())
    results: list[list[Translation]] = []
    for ids, source, hypotheses in zip(all_ids, sources, found, strict=True):
        source_tokens = tuple(map(source_tokenizer.token_text, source))
        translations = [
            Translation(
                text=target_tokenizer.decode(one.ids, whole=settings.valid_utf8),
                score=one.score,
                log_prob=one.log_prob,
                finished=one.finished,
                tokens=tuple(map(target_tokenizer.token_text, one.ids)),
                source_tokens=source_tokens,
                truncated=len(ids) > max_ids,
                alignment=one.alignment,
            )
            for one in hypotheses
        ]
        results.append(translations if ids else [nothing] * settings.n_best)
    return results


def translate_ids(
    model: EncoderDecoder,
    sources: Sequence[Sequence[int]],
    settings: TranslateSettings | None = None,
    *,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    align: bool = False,
    decoder: Decoder | None = None,
) -> list[list[Hypothesis]]:
    """`n_best` hypotheses for each source, which ends with EOS; the best first (with `sample`: in sampling order).

    The maximum length is that of the source without EOS plus `extra_tokens`, at least 1 and at most the context. PAD
    and BOS are never generated.

    Raises `GenerationError` when a source is empty, longer than the context, or has an id outside the vocabulary.
    """
    for number, source in enumerate(sources):
        if not 1 <= len(source) <= model.config.context:
            raise GenerationError(
                tr(
                    "source {number} has {n_source} tokens; the model reads 1 to {context}",
                    number,
                    len(source),
                    model.config.context,
                ),
                advice=tr("End each source with EOS, and cut long ones."),
            )
    return _find_hypotheses(
        model,
        sources,
        settings or TranslateSettings(),
        bos_id=bos_id,
        eos_id=eos_id,
        pad_id=pad_id,
        n_target_ids=model.config.vocab_size,
        align=align,
        decoder=decoder,
    )


def _find_hypotheses(
    model: EncoderDecoder,
    sources: Sequence[Sequence[int]],
    settings: TranslateSettings,
    *,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    n_target_ids: int,
    align: bool,
    decoder: Decoder | None = None,
    unseen: Collection[int] = (),
    steps_SV: npt.NDArray[np.uint8] | None = None,
    first_line: int = 0,
    progress: Progress | None = None,
) -> list[list[Hypothesis]]:
    """Hypotheses for each source, none for an empty one; ids from `n_target_ids` on are never generated."""
    _check_ids(sources, model.config.source_vocab_size or model.config.vocab_size, first_line)
    never = {pad_id, bos_id, *range(n_target_ids, model.config.vocab_size), *unseen} - {eos_id}
    allowed = AllowedTokens(
        never,
        steps_SV=steps_SV,
        vocab_size=model.config.vocab_size,
        eos_id=eos_id,
    )
    decoder = decoder or TorchDecoder(model)
    results: list[list[Hypothesis]] = [[] for _ in sources]
    n_done = sum(not source for source in sources)
    for lines in _batches(sources, settings.batch_size):
        batch = SourceBatch.of(
            [sources[line] for line in lines],
            [_limit(len(sources[line]), settings, model.config.context) for line in lines],
            bos_id=bos_id,
            eos_id=eos_id,
            pad_id=pad_id,
            allowed=allowed,
            device=model.embedding.weight.device,
        )
        with evaluating(model), torch.inference_mode():
            if settings.sample:
                found = sample_translations(decoder, batch, settings, [first_line + line for line in lines])
            else:
                found = beam_search(decoder, batch, settings)
            if align:
                found = _with_alignment(model, batch, found, pad_id)
        for line, hypotheses in zip(lines, found, strict=True):
            results[line] = hypotheses
        n_done += len(lines)
        if progress is not None:
            progress(n_done, len(sources))
    return results


def _batches(sources: Sequence[Sequence[int]], size: int) -> Iterator[list[int]]:
    """Line numbers, grouped by length. The longest come first, so that an out-of-memory error occurs at the start."""
    order = sorted((i for i, source in enumerate(sources) if source), key=lambda i: (-len(sources[i]), i))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _limit(n_source: int, settings: TranslateSettings, context: int) -> int:
    """Maximum length of the translation of a source of `n_source` tokens, EOS included in both."""
    return min(max(n_source - 1 + settings.extra_tokens, 1), context)


def _check_ids(sources: Sequence[Collection[int]], n_known: int, first_line: int) -> None:
    for number, source in enumerate(sources, start=first_line + 1):
        if source and max(source) >= n_known:
            raise GenerationError(
                tr(
                    "line {number} has token {source}, but the model knows only tokens 0 to {n_known}",
                    number,
                    max(source),
                    n_known - 1,
                ),
                advice=tr("The tokenizer does not belong to this model."),
            )


def _with_alignment(
    model: EncoderDecoder, batch: SourceBatch, found: Sequence[Sequence[Hypothesis]], pad_id: int
) -> list[list[Hypothesis]]:
    """The hypotheses with their cross-attention weights, from one forward pass over all of them."""
    device = batch.source_BS.device
    texts = [text for text, hypotheses in enumerate(found) for _ in hypotheses]
    generated = [one.ids for hypotheses in found for one in hypotheses]
    longest = max(len(ids) for ids in generated)
    # Row t of the weights is the step that chose token t: its input is the token before.
    inputs = [[batch.bos_id, *ids[:-1], *[pad_id] * (longest - len(ids))] for ids in generated]
    chosen = torch.tensor(texts, device=device)
    lengths_N = None if batch.lengths_B is None else batch.lengths_B[chosen]
    name = f"decoder.blocks.{model.config.n_layers - 1}.cross_attention.weights"
    taps = Taps(name)
    model(batch.source_BS[chosen], torch.tensor(inputs, device=device), source_lengths_B=lengths_N, taps=taps)
    weights_NTS = taps.values[name].mean(dim=1)
    n_source = [batch.source_BS.shape[1]] * len(texts) if lengths_N is None else lengths_N.tolist()
    maps = iter(
        weights_TS[: len(ids), :n].clone() for weights_TS, ids, n in zip(weights_NTS, generated, n_source, strict=True)
    )
    return [[replace(one, alignment=next(maps)) for one in hypotheses] for hypotheses in found]
