"""A decoder-only model ready for use: generate, score, compute logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mingyue.api.caller import speaks_python
from mingyue.api.loaded_model import LoadedModel, merge_settings
from mingyue.bundle import Bundle
from mingyue.config import GenerateSettings, ModelConfig, Positive, checked, checked_text, checked_texts
from mingyue.errors import GenerationError
from mingyue.generation import Backend, Event, Generation, Request, Service, TokenRules, finished, stream_prompts
from mingyue.generation.backends import onnx_model
from mingyue.runtime import Runtime
from mingyue.words import tr

if TYPE_CHECKING:
    from torch import Tensor

    from mingyue.generation.backends import BackendKind
    from mingyue.generation.onnx_backend import OnnxModel
    from mingyue.generation.translating import Progress
    from mingyue.graphs import WeightKind
    from mingyue.models import DecoderOnly
    from mingyue.scoring import Score


class Model(LoadedModel[ModelConfig, "DecoderOnly", "OnnxModel"]):
    """A trained decoder-only model with its tokenizer. `mingyue.load` returns one."""

    def __init__(
        self,
        bundle: Bundle[DecoderOnly],
        *,
        checkpoint: int | None = None,
        runtime: Runtime | None = None,
        threads: int | None = None,
        backend: BackendKind | None = None,
        weights: WeightKind = "fp32",
        opened: OnnxModel | None = None,
    ) -> None:
        """`backend` and `weights` as in `mingyue.load`; `opened`: the model in onnxruntime, if it is there already."""
        super().__init__(
            bundle,
            checkpoint=checkpoint,
            runtime=runtime,
            threads=threads,
            backend=backend,
            weights=weights,
            opened=opened,
        )
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

    def _open_onnx(self, sha256: str | None, threads: int) -> OnnxModel:
        return onnx_model(
            self.config,
            kind=self._kind,
            threads=threads,
            sha256=sha256,
            arrays=self._bundle.arrays,
            module=lambda: self._bundle.model,
        )

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
        with self._applied():
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
        with self._applied():
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
        opened = self._onnx()
        if opened is None:
            from mingyue.generation import TorchBackend

            return TorchBackend(self.module)
        from mingyue.generation.onnx_backend import OnnxBackend

        return OnnxBackend(opened)

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
            around=self._applied,
        )

    @speaks_python()
    def score(self, text: str, *, stride: int | None = None, progress: Progress | None = None) -> Score:
        """log P of every token and of the whole text; a text longer than the context in windows moved by `stride`.

        `progress` receives the number of windows done and of all windows.
        PyTorch computes it, the reference, unless onnxruntime or int8 weights were asked for when the model was loaded.
        """
        from mingyue.scoring import score

        checked_text("text", text)
        checked("stride", stride, Positive | None)
        notes = self._new_notes()
        backend = self._backend() if self._asked == "onnxruntime" or self._kind == "int8" else None
        with self.runtime.applied():
            found = score(
                self.module,
                self.tokenizer,
                text,
                stride=stride,
                starts_with_bos=self.starts_with_bos,
                backend=backend,
                progress=progress,
            )
        if not found.scored:
            notes.append(
                tr(
                    "The text has one token, and this model has no probability of a first token: its "
                    "texts do not begin with BOS. There is nothing to score."
                )
            )
        return found

    @speaks_python()
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
        import torch

        ids_BT = torch.tensor([ids], device=self.module.embedding.weight.device)
        with self.runtime.applied(), torch.inference_mode():
            return self.module(ids_BT)[0]
