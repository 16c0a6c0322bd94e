"""Generation of text from prompts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from mingyue.config import GenerateSettings
from mingyue.errors import GenerationError
from mingyue.generation.allowed import AllowedTokens
from mingyue.generation.engine import Engine, Note
from mingyue.generation.sampling import Sampler
from mingyue.generation.sequence import Event, GeneratedSequence, Generation
from mingyue.generation.window import window_start
from mingyue.words import tr

if TYPE_CHECKING:
    from mingyue.models import DecoderOnly
    from mingyue.text import Tokenizer

_SHOWN = 8  # characters in a note
_LINE_END = "\n"
"""Read in place of an empty prompt by a model of one document whose bundle has no `begin_id` (older ones)."""


def generate(
    model: DecoderOnly,
    tokenizer: Tokenizer,
    prompts: Sequence[str] | str,
    settings: GenerateSettings | None = None,
    *,
    starts_with_bos: bool,
    begin_id: int | None = None,
    unseen: Collection[int] = (),
    logprobs: bool = False,
    use_cache: bool = True,
    note: Note | None = None,
) -> list[Generation]:
    """Continue each prompt; returns `samples` texts per prompt, in the order of prompts. Arguments as in `stream`."""
    return finished(
        stream(
            model,
            tokenizer,
            prompts,
            settings,
            starts_with_bos=starts_with_bos,
            begin_id=begin_id,
            unseen=unseen,
            logprobs=logprobs,
            use_cache=use_cache,
            note=note,
        )
    )


def finished(events: Iterable[Event]) -> list[Generation]:
    """The finished texts of a stream, in the order of prompts and samples."""
    results: list[Generation] = []
    for event in events:
        if event.result is not None:
            results.append(event.result)
    return sorted(results, key=lambda result: (result.prompt_index, result.sample))


def stream(
    model: DecoderOnly,
    tokenizer: Tokenizer,
    prompts: Sequence[str] | str,
    settings: GenerateSettings | None = None,
    *,
    starts_with_bos: bool,
    begin_id: int | None = None,
    unseen: Collection[int] = (),
    logprobs: bool = False,
    use_cache: bool = True,
    note: Note | None = None,
) -> Iterator[Event]:
    """Continue each prompt; yields every token of every sample as it is generated.

    `starts_with_bos`: whether BOS precedes each prompt, as in the model's training data. An empty prompt is then BOS
    alone; otherwise `begin_id` is read in its place, a token that occurs in the training text. `unseen`: ids that do
    not occur there, which are generated only with `allow_unseen`. The text depends on the prompt, its index and the
    settings, not on the batch or on `use_cache` (False reads the whole window again for every token). The exception are
    near-ties: sums are rounded differently, and tokens within about 1e-6 nats of each other or of the limit of top-p
    may change places.

    `note` receives sentences for the user, each at most once: a prompt longer than the context, a text that becomes
    longer than it, characters that training never met, settings without effect. `window_start` defines what the model
    reads then.

    Raises `GenerationError` when an id of a prompt is unknown to the model, or the model's output is NaN.
    """
    settings = settings or GenerateSettings()
    note = note or _ignore
    prompts = [prompts] if isinstance(prompts, str) else list(prompts)
    all_ids = [_prompt_ids(tokenizer, prompt, starts_with_bos, begin_id, model.config.vocab_size) for prompt in prompts]
    _note_long_prompts(all_ids, model.config.context, note)
    _note_unseen(tokenizer, prompts, all_ids, unseen, note)
    _note_unused(settings, note)
    never = {tokenizer.pad_id, tokenizer.bos_id, *range(tokenizer.vocab_size, model.config.vocab_size)}
    if not settings.allow_unseen:
        never |= set(unseen)
    never -= {tokenizer.eos_id}  # some tokenizers use one token for BOS, EOS and padding
    allowed = AllowedTokens(
        [token for token in never if token < model.config.vocab_size],
        device=model.embedding.weight.device,
        steps_SV=tokenizer.utf8_steps if settings.valid_utf8 else None,
        vocab_size=model.config.vocab_size,
        eos_id=tokenizer.eos_id,
    )
    sequences = [
        GeneratedSequence(
            prompts[i], ids, settings, tokenizer, allowed, prompt_index=i, sample=sample, logprobs=logprobs
        )
        for i, ids in enumerate(all_ids)
        for sample in range(settings.samples)
    ]
    if settings.max_new_tokens == 0:
        return iter([sequence.empty() for sequence in sequences])
    sampler = Sampler(settings, allowed, eos_id=tokenizer.eos_id, logprobs=logprobs)
    return Engine(model, sampler, sequences, use_cache=use_cache, note=note).run()


def _prompt_ids(
    tokenizer: Tokenizer, prompt: str, starts_with_bos: bool, begin_id: int | None, vocab_size: int
) -> list[int]:
    ids = tokenizer.encode(prompt)
    if starts_with_bos:
        ids = [tokenizer.bos_id, *ids]
    elif not ids and begin_id is not None:
        ids = [begin_id]
    elif not ids:
        ids = tokenizer.encode(_LINE_END) or [tokenizer.bos_id]  # some given tokenizers drop white space
    if max(ids) >= vocab_size:
        raise GenerationError(
            tr(
                "the prompt has token {ids}, but the model knows only tokens 0 to {vocab_size}",
                max(ids),
                vocab_size - 1,
            ),
            advice=tr("The tokenizer does not belong to this model."),
        )
    return ids


def _note_long_prompts(all_ids: Sequence[Sequence[int]], context: int, note: Note) -> None:
    long = [i for i, ids in enumerate(all_ids) if len(ids) > context]
    if long:
        first = len(all_ids[long[0]])
        which = tr("Prompt {long}", long[0] + 1) if len(all_ids) > 1 else tr("The prompt")
        others = tr(" ({n_long} of {n_all_ids} prompts are too long)", len(long), len(all_ids)) if len(long) > 1 else ""
        note(
            tr(
                "{which} has {first} tokens, more than the context of {context}: the model reads "
                "only its last {kept}{others}. Whenever the context is full, reading continues "
                "from its last {max} tokens, wherever a prompt ends and generation begins.",
                which,
                first,
                context,
                first - window_start(first, context),
                others,
                max(1, context // 2),
            )
        )


def _note_unseen(
    tokenizer: Tokenizer, prompts: Sequence[str], all_ids: Sequence[list[int]], unseen: Collection[int], note: Note
) -> None:
    """Name the characters whose tokens do not occur in the training text: the model knows nothing about them."""
    without = frozenset(unseen)
    texts = [prompt for prompt, ids in zip(prompts, all_ids, strict=True) if not without.isdisjoint(ids)]
    found = [one for one in dict.fromkeys("".join(texts)) if not without.isdisjoint(tokenizer.encode(one))]
    if found:
        shown = ", ".join(map(repr, found[:_SHOWN])) + (", …" if len(found) > _SHOWN else "")
        note(
            tr(
                "The training text does not have these characters of the prompt: {shown}. The model cannot know them.",
                shown,
            )
        )


def _note_unused(settings: GenerateSettings, note: Note) -> None:
    given = [name for name, off in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)) if getattr(settings, name) != off]
    if settings.temperature == 0 and given:
        note(tr("At temperature 0 the likeliest token is taken: {given} without effect.", ", ".join(given)))


def _ignore(_sentence: str) -> None:
    pass
