"""Generation of text from prompts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from mingyue.config import GenerateSettings
from mingyue.errors import GenerationError
from mingyue.generation.backend import Backend
from mingyue.generation.engine import Engine, Note
from mingyue.generation.request import Request
from mingyue.generation.rules import TokenRules
from mingyue.generation.sequence import Event, GeneratedSequence, Generation
from mingyue.generation.window import window_start
from mingyue.words import tr

if TYPE_CHECKING:
    from mingyue.models import DecoderOnly
    from mingyue.text import Tokenizer

_SHOWN = 8  # characters in a note


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
    results = [event.result for event in events if event.result is not None]
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
    """Continue each prompt with a PyTorch model. Arguments as in `TokenRules` and `stream_requests`.

    `use_cache` False reads the whole window again for every token. The text does not depend on it, nor on the batch,
    except at near-ties: sums are rounded differently, and tokens within about 1e-6 nats of each other or of the limit
    of top-p may change places.
    """
    from mingyue.generation.torch_backend import TorchBackend, UncachedBackend

    rules = TokenRules(
        tokenizer, model.config.vocab_size, starts_with_bos=starts_with_bos, begin_id=begin_id, unseen=unseen
    )
    backend = TorchBackend(model) if use_cache else UncachedBackend(model)
    return stream_prompts(backend, rules, prompts, settings or GenerateSettings(), logprobs=logprobs, note=note)


def stream_prompts(
    backend: Backend,
    rules: TokenRules,
    prompts: Sequence[str] | str,
    settings: GenerateSettings,
    *,
    logprobs: bool = False,
    note: Note | None = None,
) -> Iterator[Event]:
    """Continue each prompt; yields every token of every sample as it is generated.

    The text depends on the prompt, its index and the settings, not on the batch. `note` receives sentences for the
    user, each at most once: a prompt longer than the context, a text that becomes longer than it, characters that
    training never met, settings without effect. `window_start` defines what the model reads then.

    Raises `GenerationError` when an id of a prompt is unknown to the model, or the model's output is NaN.
    """
    note = note or _ignore
    prompts = [prompts] if isinstance(prompts, str) else list(prompts)
    all_ids = [rules.prompt_ids(prompt) for prompt in prompts]
    _note_long_prompts(all_ids, backend.context, note)
    _note_unseen(rules.tokenizer, prompts, all_ids, rules.unseen, note)
    _note_unused(settings, note)
    sequences = [
        rules.sequence(
            Request(
                prompts[i],
                tuple(ids),
                settings,
                prompt_index=i,
                sample=sample,
                top_logprobs=0 if logprobs else None,
            )
        )
        for i, ids in enumerate(all_ids)
        for sample in range(settings.samples)
    ]
    return _run(backend, sequences, settings, note)


def _run(
    backend: Backend, sequences: Sequence[GeneratedSequence], settings: GenerateSettings, note: Note
) -> Iterator[Event]:
    longest = max((len(sequence.ids) for sequence in sequences), default=1) + settings.max_new_tokens
    engine = Engine(backend, max_rows=settings.batch_size, capacity=longest, note=note)
    engine.add(sequences)
    while not engine.idle:
        for _, output in engine.step():
            if isinstance(output, GenerationError):
                raise output
            yield output


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
