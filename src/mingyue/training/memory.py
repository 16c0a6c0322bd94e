"""The peak memory of a training step, by formula, for the check before a run starts.

The peak is the most of three moments. At the start of the backward pass all activations are there, and with them what
the loss and the first blocks work on; with accumulation, the gradients of earlier micro-batches too. At its end all
gradients. In the update, what Muon's products need. Weights and the optimiser's state are always there.

On CPUs glibc's heap takes more than the tensors in it: memory that aligned tensors leave does not take tensors of the
same size again. From 32 MiB on a tensor is a mapping of its own, and given back. The shares below are measured
(`bench/contexts.py`, docs/memory.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mingyue.config import EncoderDecoderConfig, TrainSettings
from mingyue.models import TransformerConfig, sizes
from mingyue.models.size import FP32_BYTES
from mingyue.runtime import Runtime
from mingyue.training.loss import is_chunked

_MAPPED = 32 << 20  # bytes from which glibc maps a block by itself
_HEAP_SHARE = 0.15  # of activations, lost between the tensors of a heap
_LIBRARIES = 64 << 20  # kernels and their buffers, loaded with the first step
_NEWTON_SCHULZ = 2.75  # a stack, its next value, and two squares of its shorter side, in stacks of the usual shapes


@dataclass(frozen=True)
class StepMemory:
    """Estimated memory of one process in training, by kind, in bytes, without the program itself."""

    weights: int
    gradients: int
    optimiser: int
    """State of the optimiser, and Muon's buffer for its gradients."""
    activations: int
    """Kept by the forward pass of one micro-batch for its backward pass."""
    working: int
    """Logits or the chunked loss, gradients of activations, masks."""
    update: int
    """Matrix products of Muon."""
    spare: int
    """Fragmentation, and libraries."""
    accumulates: bool = False
    """Whether gradients of earlier micro-batches exist during a forward pass."""
    in_heap: bool = False
    """Whether activations are in the heap, which keeps their memory during the update."""

    @property
    def total(self) -> int:
        """The peak."""
        early = self.gradients if self.accumulates else self.gradients // 2  # half find room where activations were
        backward = self.activations + self.working + early
        update = self.update + (self.activations + early if self.in_heap else self.gradients)
        return self.weights + self.optimiser + self.spare + max(backward, update)


@dataclass(frozen=True)
class MicroBatch:
    """The shape of the input of one forward and backward pass."""

    rows: int
    length: int
    """Tokens of a row; for pairs, on either side."""
    accumulates: bool = False
    """Whether a step has several of them."""
    documents: bool = False
    """Whether attention is restricted to documents, which takes a mask."""

    @property
    def tokens(self) -> int:
        """All tokens of one side."""
        return self.rows * self.length


def step_memory(config: TransformerConfig, settings: TrainSettings, batch: MicroBatch, runtime: Runtime) -> StepMemory:
    """The peak of a training step, by formula, without making a weight."""
    counted, muon = sizes(config), settings.optimiser.optimiser == "muon"
    on_cpu = runtime.device.type == "cpu"
    number = FP32_BYTES if runtime.dtype is torch.float32 else 2
    activations = counted.activation_bytes(
        batch.rows, batch.length, bytes_per_number=number, logits=False, recompute=settings.batch.recompute
    )
    whole = counted.activation_bytes(batch.rows, batch.length, bytes_per_number=number, logits=False)
    dense = _dense_bytes(config, batch, on_cpu=on_cpu, number=number)
    spare = _LIBRARIES
    in_heap = on_cpu and batch.tokens * config.d_model * number < _MAPPED
    if in_heap:
        small = max(0, activations - dense * (1 if settings.batch.recompute else _layers(config)))
        spare += int(_HEAP_SHARE * small)
        if settings.batch.recompute:  # the forward pass leaves the heap of one block, and the backward pass the next
            spare += int(whole / _layers(config))
    gradients_of_block = batch.tokens * 2 * (config.d_ff + config.d_model) * number
    working = max(gradients_of_block, dense * 2 // 3) + _mask_bytes(config, batch, number)
    logits, beside = _loss_bytes(config, settings, batch, runtime)
    copies = 0 if number == FP32_BYTES else number * counted.parameters  # mixed precision's
    update = int(_NEWTON_SCHULZ * FP32_BYTES * _largest_stack(config)) if muon else 0
    parts = {
        "weights": counted.weight_bytes(),
        "gradients": counted.weight_bytes(),
        "optimiser": counted.optimiser_bytes(settings.optimiser.optimiser) + muon * FP32_BYTES * counted.block_matrices,
    }
    if settings.run.parallel == "sharded":
        parts = {name: size // runtime.world_size for name, size in parts.items()}
        update //= runtime.world_size
    return StepMemory(
        **parts,
        activations=activations,
        working=max(working, logits) + beside + copies,
        update=update,
        spare=spare,
        accumulates=batch.accumulates,
        in_heap=in_heap,
    )


def _layers(config: TransformerConfig) -> int:
    return config.n_layers + (config.n_encoder_layers if isinstance(config, EncoderDecoderConfig) else 0)


def _dense_bytes(config: TransformerConfig, batch: MicroBatch, *, on_cpu: bool, number: int) -> int:
    """Weights of attention that one block keeps where no fused kernel serves: dropout on a CPU."""
    if not (on_cpu and config.attention_dropout):
        return 0
    window = getattr(config, "window", None)
    keys = batch.length if window is None else min(batch.length, 2 * window)
    return 3 * batch.tokens * keys * config.n_heads * number


def _mask_bytes(config: TransformerConfig, batch: MicroBatch, number: int) -> int:
    """A drawn mask: booleans, and the numbers that kernels add; one for all layers."""
    if batch.documents:
        return batch.tokens * batch.length * (3 + number)
    drawn = config.attention_dropout and getattr(config, "window", None) is None
    return batch.length**2 * (1 + number) if drawn else 0


def _loss_bytes(
    config: TransformerConfig, settings: TrainSettings, batch: MicroBatch, runtime: Runtime
) -> tuple[int, int]:
    """(bytes of the logits and values derived from them; bytes kept until the backward pass has begun)."""
    table = config.vocab_size * config.d_model
    x = batch.tokens * config.d_model
    has_bias = getattr(config, "output_bias", False)
    chunked = not has_bias and is_chunked(
        settings.batch.chunked_loss,
        rows=batch.tokens,
        width=config.d_model,
        vocab_size=config.vocab_size,
        mixed=runtime.dtype is not torch.float32,
    )
    if chunked:
        return 0, FP32_BYTES * (table + x)
    copies = 4 if settings.optimiser.label_smoothing else 3  # log-probabilities, their gradient, that of the logits
    return FP32_BYTES * copies * batch.tokens * config.vocab_size, 0


def _largest_stack(config: TransformerConfig) -> int:
    """Numbers in the largest stack of equal matrices that Muon works on at once."""
    layers, width = _layers(config), config.d_model
    crossed = config.n_layers if isinstance(config, EncoderDecoderConfig) else 0
    heads = config.n_heads * config.d_head
    square = 4 * (layers + crossed) * width * heads
    feedforward = (3 if config.feedforward == "swiglu" else 2) * layers * width * config.d_ff
    return max(square, feedforward)
