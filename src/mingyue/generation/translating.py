"""From lines to their translations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mingyue.config import TranslateSettings
from mingyue.errors import GenerationError
from mingyue.generation.beam import beam_search
from mingyue.generation.drawing import draw_translations
from mingyue.generation.evaluating import evaluating
from mingyue.generation.hypotheses import Hypothesis, SourceBatch
from mingyue.nn import Taps, for_inference

if TYPE_CHECKING:
    from mingyue.models import EncoderDecoder
    from mingyue.text import Tokenizer

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Translation:
    """A translation of one line."""

    text: str
    score: float
    """log_prob / lp(tokens written), by which translations of a line are compared."""
    log_prob: float
    """log P (natural) of the translation under the model, its end mark included."""
    finished: bool
    """Whether it ended by itself; if not, it was cut off at the limit of its length."""
    tokens: tuple[str, ...]
    """What was written, token by token, for people; with the end mark if it ended."""
    source_tokens: tuple[str, ...]
    """What the model read, with its end mark."""
    truncated: bool = False
    """Whether the line had more tokens than the context, so that its end was not read."""
    alignment: Tensor | None = field(default=None, compare=False)
    """[tokens, source tokens]: where the model looked when it wrote each token; each row sums to 1. On request."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON; without an alignment that was not asked for."""
        values = asdict(replace(self, alignment=None))
        if self.alignment is None:
            del values["alignment"]
        else:
            values["alignment"] = self.alignment.tolist()
        return values


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
) -> list[list[Translation]]:
    """Translate each line; returns `n_best` translations a line, the best first (draws: in the order of drawing).

    The result depends on the line and the settings (when drawing: on its index too, counted from `first_line`, so that
    a text may come in several calls), never on the batch. A line without tokens has empty translations, and the model
    is not asked. A line longer than the context is cut, and its translations say so (`truncated`). `align` adds
    where the model looked: weights of the cross-attention of the last block, averaged over its heads. `unseen`: ids
    that training has not met in targets, written only with `allow_unseen`. `progress` gets the lines done and all.

    Raises `GenerationError` when a line has a token that the model does not know, or the model's output is NaN.
    """
    settings = settings or TranslateSettings()
    all_ids = [source_tokenizer.encode(line) for line in lines]
    room = model.config.context - 1
    sources = [[*ids[:room], source_tokenizer.eos_id] if ids else [] for ids in all_ids]
    found = _search(
        model,
        sources,
        settings,
        bos_id=target_tokenizer.bos_id,
        eos_id=target_tokenizer.eos_id,
        pad_id=target_tokenizer.pad_id,
        n_written_ids=target_tokenizer.vocab_size,
        unseen=() if settings.allow_unseen else unseen,
        align=align,
        first_line=first_line,
        progress=progress,
    )
    nothing = Translation("", 0.0, 0.0, True, (), ())
    results: list[list[Translation]] = []
    for ids, source, hypotheses in zip(all_ids, sources, found, strict=True):
        source_tokens = tuple(map(source_tokenizer.token_text, source))
        translations = [
            Translation(
                text=target_tokenizer.decode(one.ids),
                score=one.score,
                log_prob=one.log_prob,
                finished=one.finished,
                tokens=tuple(map(target_tokenizer.token_text, one.ids)),
                source_tokens=source_tokens,
                truncated=len(ids) > room,
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
) -> list[list[Hypothesis]]:
    """`n_best` hypotheses for each source, which ends with its end mark; the best first (draws: in their order).

    At most as many tokens as the source has without its end mark and `extra_tokens` more are written, at least one,
    and no more than the context. Padding and begin marks are never written.

    Raises `GenerationError` when a source has no token, more than the context, or one that the model does not know.
    """
    for number, source in enumerate(sources):
        if not 1 <= len(source) <= model.config.context:
            raise GenerationError(
                f"source {number} has {len(source)} tokens; the model reads 1 to {model.config.context}",
                advice="End each source with the end mark, and cut long ones.",
            )
    return _search(
        model,
        sources,
        settings or TranslateSettings(),
        bos_id=bos_id,
        eos_id=eos_id,
        pad_id=pad_id,
        n_written_ids=model.config.vocab_size,
        align=align,
    )


def _search(
    model: EncoderDecoder,
    sources: Sequence[Sequence[int]],
    settings: TranslateSettings,
    *,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    n_written_ids: int,
    align: bool,
    unseen: Collection[int] = (),
    first_line: int = 0,
    progress: Progress | None = None,
) -> list[list[Hypothesis]]:
    """Hypotheses for each source, none for one without tokens; ids from `n_written_ids` on spell nothing."""
    _check_ids(sources, model.config.source_vocab_size or model.config.vocab_size, first_line)
    never = {pad_id, bos_id, *range(n_written_ids, model.config.vocab_size), *unseen} - {eos_id}
    results: list[list[Hypothesis]] = [[] for _ in sources]
    n_done = sum(not source for source in sources)
    for lines in _batches(sources, settings.batch_size):
        batch = SourceBatch.of(
            [sources[line] for line in lines],
            [_limit(len(sources[line]), settings, model.config.context) for line in lines],
            bos_id=bos_id,
            eos_id=eos_id,
            pad_id=pad_id,
            never=never,
            device=model.embedding.weight.device,
        )
        with evaluating(model), torch.inference_mode():
            acting = for_inference(model)
            if settings.sample:
                found = draw_translations(acting, batch, settings, [first_line + line for line in lines])
            else:
                found = beam_search(acting, batch, settings)
            if align:
                found = _aligned(acting, batch, found, pad_id)
        for line, hypotheses in zip(lines, found, strict=True):
            results[line] = hypotheses
        n_done += len(lines)
        if progress is not None:
            progress(n_done, len(sources))
    return results


def _batches(sources: Sequence[Sequence[int]], size: int) -> Iterator[list[int]]:
    """Lines of about equal length side by side. The longest come first: if memory fails, then at once."""
    order = sorted((i for i, source in enumerate(sources) if source), key=lambda i: (-len(sources[i]), i))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _limit(n_source: int, settings: TranslateSettings, context: int) -> int:
    """Most tokens written for a source of `n_source` tokens, its end mark counted."""
    return min(max(n_source - 1 + settings.extra_tokens, 1), context)


def _check_ids(sources: Sequence[Collection[int]], n_known: int, first_line: int) -> None:
    for number, source in enumerate(sources, start=first_line + 1):
        if source and max(source) >= n_known:
            raise GenerationError(
                f"line {number} has token {max(source)}, but the model knows only tokens 0 to {n_known - 1}",
                advice="The tokenizer does not belong to this model.",
            )


def _aligned(
    model: EncoderDecoder, batch: SourceBatch, found: Sequence[Sequence[Hypothesis]], pad_id: int
) -> list[list[Hypothesis]]:
    """The same hypotheses with where the model looked, from one pass over what it has written."""
    device = batch.source_BS.device
    texts = [text for text, hypotheses in enumerate(found) for _ in hypotheses]
    written = [one.ids for hypotheses in found for one in hypotheses]
    longest = max(len(ids) for ids in written)
    # The row of a token is the pass that chose it: what stands before it goes in.
    inputs = [[batch.bos_id, *ids[:-1], *[pad_id] * (longest - len(ids))] for ids in written]
    chosen = torch.tensor(texts, device=device)
    lengths_N = None if batch.lengths_B is None else batch.lengths_B[chosen]
    name = f"decoder.blocks.{model.config.n_layers - 1}.cross_attention.weights"
    taps = Taps(name)
    model(batch.source_BS[chosen], torch.tensor(inputs, device=device), source_lengths_B=lengths_N, taps=taps)
    weights_NTS = taps.values[name].mean(dim=1)
    n_source = [batch.source_BS.shape[1]] * len(texts) if lengths_N is None else lengths_N.tolist()
    maps = iter(
        weights_TS[: len(ids), :n].clone() for weights_TS, ids, n in zip(weights_NTS, written, n_source, strict=True)
    )
    return [[replace(one, alignment=next(maps)) for one in hypotheses] for hypotheses in found]
