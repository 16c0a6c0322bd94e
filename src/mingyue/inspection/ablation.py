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


FEWEST_TEXTS = 8
"""From this many texts on, tokens of one text count as one observation for the standard error."""


@dataclass(frozen=True)
class Ablated:
    """Changes of the loss with a head switched off, in nats per token: means over all tokens of all probes.

    Standard errors are paired: those of the mean difference of the same tokens with and without the head.
    """

    zero_LH: Floats
    """The head's output is 0."""
    zero_error_LH: Floats
    """Its standard error; NaN for a single token."""
    mean_LH: Floats
    """The head's output is its mean over the text: only its constant part stays."""
    mean_error_LH: Floats


@torch.inference_mode()
def ablate_heads(
    subject: Subject, parts: Sequence[AttentionPart], probes: Sequence[Probe], progress: Progress | None = None
) -> tuple[float, list[Ablated]]:
    """The loss of the whole model, and for each part the changes of it with each head switched off in turn."""
    n_all, n_done = len(probes) * sum(part.n_layers for part in parts), 0
    nats, texts = list[Tensor](), list[Tensor]()
    found: list[list[Tensor]] = [[] for _ in parts]  # of each part, changes_2LHN of each probe
    for probe in probes:
        before = Taps(_needed(parts))
        nats_BN = _nats(subject.module(*probe.arguments, taps=before), probe)[0]
        nats.append(nats_BN.flatten())
        texts.append((torch.arange(len(nats_BN))[:, None] + sum(map(len, texts))).expand_as(nats_BN).flatten())
        for part, changes in zip(parts, found, strict=True):
            layers = []
            for layer in range(part.n_layers):
                without_2HN = _without_heads(subject.module, part, layer, probe, before)
                layers.append(without_2HN - nats_BN.flatten())
                n_done += 1
                if progress is not None:
                    progress(n_done, n_all)
            changes.append(torch.stack(layers, dim=1))
    text_N = torch.cat(texts)
    return float(torch.cat(nats).mean()), [_ablated(torch.cat(changes, dim=-1), text_N) for changes in found]


def _ablated(changes_2LHN: Tensor, text_N: Tensor) -> Ablated:
    zero_LH, mean_LH = changes_2LHN.mean(dim=-1)
    zero_error_LH, mean_error_LH = standard_error(changes_2LHN, text_N)
    return Ablated(zero_LH.numpy(), zero_error_LH.numpy(), mean_LH.numpy(), mean_error_LH.numpy())


def standard_error(values_N: Tensor, text_N: Tensor) -> Tensor:
    """The standard error of the mean over the last axis; NaN for a single observation.

    Tokens of one text depend on each other: with `FEWEST_TEXTS` texts or more, the error is that of sums over texts
    (cluster-robust, Liang and Zeger 1986), and with fewer that of independent tokens.
    """
    n_tokens, (_, group_N) = values_N.shape[-1], torch.unique(text_N, return_inverse=True)
    n_groups = int(group_N.max()) + 1
    if n_groups < FEWEST_TEXTS:
        group_N, n_groups = torch.arange(n_tokens), n_tokens
    apart_N = values_N - values_N.mean(dim=-1, keepdim=True)
    sums_G = apart_N.new_zeros(*apart_N.shape[:-1], n_groups).index_add_(-1, group_N, apart_N)
    variance = (sums_G**2).sum(dim=-1) / n_tokens**2
    return (variance * n_groups / (n_groups - 1)).sqrt() if n_groups > 1 else torch.full_like(variance, torch.nan)


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


def _nats(logits_BTV: Tensor, probe: Probe) -> Tensor:
    """logits of R copies of the probe, [R · B, T, V] → −log P of their counted tokens, [R, B, N]."""
    n_rows, n_targets = probe.targets_BT.shape
    counted = slice(probe.counted_from, n_targets)
    targets_BN = probe.targets_BT[:, counted]
    each = [
        F.cross_entropy(logits_BNV.flatten(0, 1).float(), targets_BN.flatten(), reduction="none").view_as(targets_BN)
        for logits_BNV in logits_BTV[:, counted].unflatten(0, (-1, n_rows))
    ]
    return torch.stack(each).double().cpu()


def _without_heads(module: Transformer, part: AttentionPart, layer: int, probe: Probe, before: Taps) -> Tensor:
    """nats_2HN: −log P of the N counted tokens, each head of the layer switched off, by zeros and by its mean."""
    heads_BHTD = before.values[part.tap(layer, "heads")]
    mean_HD = heads_BHTD.mean(dim=(0, 2))
    instead_RD = torch.cat([torch.zeros_like(mean_HD), mean_HD])
    head_R = torch.arange(part.n_heads, device=heads_BHTD.device).repeat(2)
    tail = _from_layer(module, part, layer)
    size = probe.ids_BT.numel() * module.config.vocab_size
    at_once = max(1, MOST_LOGITS // size)
    nats = []
    for start in range(0, len(head_R), at_once):
        chunk = slice(start, start + at_once)
        n_copies = len(head_R[chunk])
        edits = {
            part.tap(0, "heads"): _replace_heads(head_R[chunk], instead_RD[chunk]),
            **{tap: _put(before.values[source].repeat(n_copies, 1, 1)) for tap, source in _inputs(part, layer, module)},
        }
        arguments = [ids.repeat(n_copies, 1) for ids in probe.arguments]
        nats.append(_nats(tail(*arguments, taps=Taps(edits=edits)), probe).flatten(1))
    return torch.cat(nats).unflatten(0, (2, part.n_heads))


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
