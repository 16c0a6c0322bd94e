"""Head ablation: the loss of a text with the output of a head replaced by zeros, or by its mean.

All heads of a layer are switched off side by side, as rows of one batch, and only the layers from there on are
computed: a copy of the model that begins at that layer receives the residual stream that the whole model had there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from mingyue.inspection.command import Progress
from mingyue.inspection.head_patterns import Probe
from mingyue.inspection.parts import AttentionPart
from mingyue.inspection.subject import Subject
from mingyue.models import EncoderDecoder, Transformer
from mingyue.nn import Taps

MOST_LOGITS = 1 << 24
"""Of one batch: 64 MiB."""

Floats = NDArray[np.float64]
_Module = TypeVar("_Module", bound=nn.Module)


@dataclass(frozen=True)
class Ablated:
    """Losses with a head switched off, in nats per token: the mean over all tokens of all probes."""

    zero_LH: Floats
    """The head's output is 0."""
    mean_LH: Floats
    """The head's output is its mean over the text: only its constant part stays."""


@torch.inference_mode()
def ablate_heads(
    subject: Subject, parts: Sequence[AttentionPart], probes: Sequence[Probe], progress: Progress | None = None
) -> tuple[float, list[Ablated]]:
    """The loss of the whole model, and for each part the losses with each head switched off in turn."""
    sizes = [probe.targets_BT[:, probe.counted_from :].numel() for probe in probes]
    n_all, n_done = len(probes) * sum(part.n_layers for part in parts), 0
    loss, found = 0.0, [torch.zeros(2, part.n_layers, part.n_heads, dtype=torch.float64) for part in parts]
    for probe, size in zip(probes, sizes, strict=True):
        share = size / sum(sizes)
        before = Taps(_needed(parts))
        logits_BTV = subject.module(*probe.arguments, taps=before)
        loss += share * float(_losses(logits_BTV, probe)[0])
        for part, losses_2LH in zip(parts, found, strict=True):
            for layer in range(part.n_layers):
                losses_2LH[:, layer] += share * _without_heads(subject.module, part, layer, probe, before)
                n_done += 1
                if progress is not None:
                    progress(n_done, n_all)
    return loss, [Ablated(zero_LH.numpy(), mean_LH.numpy()) for zero_LH, mean_LH in found]


def _needed(parts: Sequence[AttentionPart]) -> Iterator[str]:
    for part in parts:
        yield from (part.tap(layer, "heads") for layer in range(part.n_layers))
        yield from (_entry(part, layer) for layer in range(part.n_layers))
        if part.name in ("decoder", "cross"):
            yield "encoder.blocks.*.output"


def _entry(part: AttentionPart, layer: int) -> str:
    """The tap whose value is the input of a layer."""
    stack = {"self": "", "encoder": "encoder."}.get(part.name, "decoder.")
    return f"{stack}blocks.{layer - 1}.output" if layer else f"{stack}embeddings"


def _losses(logits_BTV: Tensor, probe: Probe) -> Tensor:
    """logits of R copies of the probe, [R · B, T, V] → their losses [R]."""
    n_rows, n_targets = probe.targets_BT.shape
    counted = slice(probe.counted_from, n_targets)
    logits_RNV = logits_BTV[:, counted].unflatten(0, (-1, n_rows)).flatten(1, 2)
    targets_N = probe.targets_BT[:, counted].flatten()
    return torch.stack([F.cross_entropy(logits_NV.float(), targets_N).double() for logits_NV in logits_RNV]).cpu()


def _without_heads(module: Transformer, part: AttentionPart, layer: int, probe: Probe, before: Taps) -> Tensor:
    """losses_2H: each head of the layer switched off, by zeros and by its mean."""
    heads_BHTD = before.values[part.tap(layer, "heads")]
    mean_HD = heads_BHTD.mean(dim=(0, 2))
    instead_RD = torch.cat([torch.zeros_like(mean_HD), mean_HD])
    head_R = torch.arange(part.n_heads, device=heads_BHTD.device).repeat(2)
    tail = _from_layer(module, part, layer)
    size = probe.ids_BT.numel() * module.config.vocab_size
    at_once = max(1, MOST_LOGITS // size)
    losses = []
    for start in range(0, len(head_R), at_once):
        chunk = slice(start, start + at_once)
        n_copies = len(head_R[chunk])
        edits = {
            part.tap(0, "heads"): _replace_heads(head_R[chunk], instead_RD[chunk]),
            **{tap: _put(before.values[source].repeat(n_copies, 1, 1)) for tap, source in _inputs(part, layer, module)},
        }
        arguments = [ids.repeat(n_copies, 1) for ids in probe.arguments]
        losses.append(_losses(tail(*arguments, taps=Taps(edits=edits)), probe))
    return torch.cat(losses).view(2, part.n_heads)


def _inputs(part: AttentionPart, layer: int, module: Transformer) -> list[tuple[str, str]]:
    """The inputs of the tail's stacks: (tap in the tail, tap in the whole model)."""
    if not isinstance(module, EncoderDecoder):
        return [("embeddings", _entry(part, layer))]
    if part.name == "encoder":
        return [("encoder.embeddings", _entry(part, layer))]
    whole = AttentionPart("encoder", module.config.n_encoder_layers, part.n_heads)
    return [("encoder.embeddings", _entry(whole, whole.n_layers)), ("decoder.embeddings", _entry(part, layer))]


def _replace_heads(head_R: Tensor, instead_RD: Tensor) -> Callable[[Tensor], Tensor]:
    """In copy r of the rows, head `head_R[r]` is `instead_RD[r]` at all positions."""

    def edit(heads_BHTD: Tensor) -> Tensor:
        edited_RBHTD = heads_BHTD.clone().unflatten(0, (len(head_R), -1))
        edited_RBHTD[torch.arange(len(head_R), device=head_R.device), :, head_R] = instead_RD[:, None, None]
        return edited_RBHTD.flatten(0, 1)

    return edit


def _put(value: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda _: value


def _from_layer(module: Transformer, part: AttentionPart, layer: int) -> Transformer:
    """A model that begins at this layer of this part, on the same weights."""
    if not isinstance(module, EncoderDecoder):
        return _with(module, blocks=module.blocks[layer:])
    at, encoder, decoder = part.name == "encoder", module.encoder, module.decoder
    encoder = _with(encoder, blocks=encoder.blocks[layer if at else len(encoder.blocks) :])
    decoder = _with(decoder, blocks=decoder.blocks[0 if at else layer :])
    return _with(module, encoder=encoder, decoder=decoder)


def _with(module: _Module, **children: nn.Module) -> _Module:
    """A copy that shares all weights and has other modules as some of its children."""
    twin = copy.copy(module)
    twin.__dict__["_modules"] = {**module._modules, **children}
    return twin
