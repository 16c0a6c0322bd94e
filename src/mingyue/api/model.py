"""A decoder-only model ready for use: generate, score, compute logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from mingyue.api.caller import speaks_python
from mingyue.api.loaded_model import LoadedModel, merge_settings
from mingyue.bundle import Bundle
from mingyue.config import GenerateSettings, ModelConfig, Positive, checked, checked_text, checked_texts
from mingyue.errors import GenerationError
from mingyue.generation import (
    Backend,
    Event,
    Generation,
    Request,
    Service,
    TokenRules,
    TorchBackend,
    finished,
    stream_prompts,
)
from mingyue.models import DecoderOnly
from mingyue.runtime import Runtime
from mingyue.scoring import Score, score
from mingyue.words import tr


class Model(LoadedModel[ModelConfig, DecoderOnly]):
    """A trained decoder-only model with its tokenizer. `mingyue.load` returns one."""

    def __init__(
        self, bundle: Bundle[DecoderOnly], *, checkpoint: int | None = None, runtime: Runtime | None = None
    ) -> None:
        super().__init__(bundle, bundle.model.config, checkpoint=checkpoint, runtime=runtime)
        self.starts_with_bos = bundle.starts_with_bos
        """Whether BOS precedes every text, as in the training data."""
        self.rules = TokenRules(
            self.tokenizer,
            self.config.vocab_size,
            starts_with_bos=bundle.starts_with_bos,
            begin_id=bundle.begin_id,
            unseen=self.unseen,
        )
        """How a prompt is read, and which tokens may be generated."""

    @speaks_python()
    def generate(
        self,
        prompts: str | Sequence[str] = "",
        settings: GenerateSettings | None = None,
        *,
        logprobs: bool = False,
        **given: object,
    ) -> list[Generation]:
        """Continue each prompt. `given` are fields of `GenerateSettings` by name; they override `settings`.

        Returns `samples` texts per prompt, in the order of the prompts. Raises `SettingsError`, `GenerationError`.
        """
        chosen = merge_settings(GenerateSettings, settings, given)
        with self.runtime.applied():
            return finished(self._events(prompts, chosen, logprobs=logprobs))

    @speaks_python()
    def stream(self, prompt: str = "", settings: GenerateSettings | None = None, **given: object) -> Iterator[str]:
        """The text of one prompt, piece by piece as it is generated; the pieces join to exactly the text."""
        settings = merge_settings(GenerateSettings, settings, given)
        if settings.samples != 1:
            raise GenerationError(
                tr("a stream is of one text, not {samples}", settings.samples), advice=tr("Use generate instead.")
            )
        return (event.text for event in self.events(prompt, settings) if event.text)

    @speaks_python()
    def events(
        self, prompts: str | Sequence[str], settings: GenerateSettings | None = None, *, logprobs: bool = False
    ) -> Iterator[Event]:
        """Every token of every text as it is generated, with the finished text at its last token."""
        with self.runtime.applied():
            return self._stepwise(self._events(prompts, settings, logprobs=logprobs))

    def _events(
        self, prompts: str | Sequence[str], settings: GenerateSettings | None, *, logprobs: bool
    ) -> Iterator[Event]:
        return stream_prompts(
            self._backend(),
            self.rules,
            checked_texts("prompts", prompts),
            settings or GenerateSettings(),
            logprobs=logprobs,
            note=self._new_notes().append,
        )

    def _backend(self) -> Backend:
        """A back end with a cache of its own: calls do not share rows."""
        return TorchBackend(self.module)

    @speaks_python()
    def request(
        self,
        prompt: str | Sequence[int] = "",
        settings: GenerateSettings | None = None,
        *,
        prompt_index: int = 0,
        sample: int = 0,
        logit_bias: Mapping[int, float] | None = None,
        top_logprobs: int | None = None,
        prompt_logprobs: int | None = None,
    ) -> Request:
        """One text for a `Service`; fields as in `Request`. A string is read as `generate` reads it, ids as they are.

        Raises `GenerationError` when the model does not know one of the ids, or there is none.
        """
        ids = self.rules.prompt_ids(prompt) if isinstance(prompt, str) else list(prompt)
        if not ids:
            raise GenerationError(tr("a prompt given as ids has none"), advice=tr("Give at least the BOS token."))
        self.rules.check_ids(ids)
        return Request(
            prompt if isinstance(prompt, str) else "",
            tuple(ids),
            settings or GenerateSettings(),
            prompt_index,
            sample,
            logit_bias or {},
            top_logprobs,
            prompt_logprobs,
        )

    def service(self, *, cache_bytes: int, max_waiting: int = 1024, max_rows: int = 1024) -> Service:
        """Generation for many callers at once, on a thread of its own. Arguments and errors as in `Service`."""
        return Service(
            self._backend(),
            self.rules,
            cache_bytes=cache_bytes,
            max_waiting=max_waiting,
            max_rows=max_rows,
            around=self.runtime.applied,
        )

    @speaks_python()
    def score(self, text: str, *, stride: int | None = None) -> Score:
        """log P of every token and of the whole text; a text longer than the context in windows moved by `stride`."""
        checked_text("text", text)
        checked("stride", stride, Positive | None)
        notes = self._new_notes()
        with self.runtime.applied():
            found = score(self.module, self.tokenizer, text, stride=stride, starts_with_bos=self.starts_with_bos)
        if not found.scored:
            notes.append(
                tr(
                    "The text has one token, and this model has no probability of a first token: its "
                    "texts do not begin with BOS. There is nothing to score."
                )
            )
        return found

    @speaks_python()
    @torch.inference_mode()
    def logits(self, text: str) -> Tensor:
        """Logits of the next token after each token of `text`, [T, V] (after BOS too, where texts start with it).

        Raises `GenerationError` when the text does not fit the context, or is empty.
        """
        ids = self.tokenizer.encode(checked_text("text", text))
        if self.starts_with_bos:
            ids = [self.tokenizer.bos_id, *ids]
        if not ids:
            raise GenerationError(tr("there is nothing to read: the text is empty"))
        if len(ids) > self.config.context:
            raise GenerationError(
                tr("the text has {n_ids} tokens, the context holds {context}", len(ids), self.config.context)
            )
        ids_BT = torch.tensor([ids], device=self.module.embedding.weight.device)
        with self.runtime.applied():
            return self.module(ids_BT)[0]
