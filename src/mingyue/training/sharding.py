"""Sharding: a model divided over ranks, whose blocks are gathered one by one while it computes (FSDP2).

Each block is a unit of `torch.distributed.fsdp.fully_shard`, and so is what is left of the model: embeddings, final
norm, output layer. Weights, gradients and the optimisers' state lie divided over the ranks, by rows. A unit's weights
are gathered before it computes, and freed afterwards; its gradients are summed over the ranks and divided again
(Zhao et al. 2023, "PyTorch FSDP", after ZeRO, Rajbhandari et al. 2020).

Two things differ from the usual use. Losses here are sums that are divided by the tokens of all ranks, so gradients are
added up, not averaged. And the output layer is called outside of the model's forward, in pieces, so what belongs to no
block stays whole from the forward pass to the end of the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from mingyue.data import IGNORE, Batch, PairBatch
from mingyue.errors import SettingsError
from mingyue.models import EncoderDecoder, Transformer, TransformerConfig, initialise, make_model
from mingyue.models.parts import make_positions
from mingyue.nn import CrossAttention, Positions
from mingyue.runtime import Runtime
from mingyue.training.distributed import Ranks
from mingyue.training.forward import AnyBatch, end_forward
from mingyue.training.names import clean_name
from mingyue.training.recompute import recompute_blocks
from mingyue.words import tr

_ENTRIES = ("encode", "hidden")
"""Methods of a model, besides `forward`, that training calls: they use weights that belong to no block."""


def build_sharded(
    config: TransformerConfig, *, seed: int, runtime: Runtime, recompute: bool = False, compiled: bool = False
) -> Transformer:
    """A new model, divided over all ranks; its weights are those of `build_model(config, seed=seed)`.

    It may be larger than one device: no rank holds more than its share and one whole weight. `recompute` and `compiled`
    apply to every block, inside its unit. Every rank has to call this, in an initialised process group.

    Raises `SettingsError` for fp16: its loss scaler does not know of shards.
    """
    if runtime.dtype is torch.float16:
        raise SettingsError(
            tr("a sharded run computes in fp32 or bf16, and fp16 was asked for"),
            advice=tr("Leave --dtype out, or give bf16."),
        )
    with torch.device("meta"):
        model = make_model(config)
    if recompute:
        recompute_blocks(model)
    if compiled:
        for block in model.every_block():
            # Only the forward, not the call: gathering and resharding are not compiled.
            block.forward = torch.compile(block.forward)
    _divide(model, init_device_mesh(runtime.device.type, (dist.get_world_size(),)), _policy(runtime))
    model.to_empty(device=runtime.device)
    make_buffers(model, runtime.device)
    initialise(model, seed=seed, put=put)
    return model.train()


def put(target: Tensor, whole: Tensor) -> None:
    """Copy a whole tensor into one that may be divided: each rank copies its rows."""
    if isinstance(target, DTensor):
        target.to_local().copy_(local_rows(whole, target))
    else:
        target.copy_(whole)


def local_rows(whole: Tensor, like: DTensor) -> Tensor:
    """The rows of `whole` that this rank holds of `like`, which has its shape."""
    start, end = row_range(like.shape[0], like.device_mesh.get_local_rank(), like.device_mesh.size())
    return whole[start:end]


def row_range(rows: int, rank: int, ranks: int) -> tuple[int, int]:
    """The rows that a rank holds: equal parts, rounded up, while there are rows."""
    each = -(-rows // ranks)
    return min(rank * each, rows), min((rank + 1) * each, rows)


def as_shards(tensor: Tensor) -> DTensor:
    """`tensor`, which is divided over the ranks."""
    assert isinstance(tensor, DTensor)
    return tensor


def sum_of_rows(tensor: DTensor, rows_R: Tensor) -> Tensor:
    """The sum of these rows, which any ranks may hold. Every rank has to call this."""
    total = tensor.to_local()[_own_rows(tensor, rows_R)].sum(dim=0)
    dist.all_reduce(total)
    return total


def set_rows(tensor: DTensor, rows_R: Tensor, row: Tensor) -> None:
    """Set those of these rows that this rank holds."""
    tensor.to_local()[_own_rows(tensor, rows_R)] = row


class ShardedGradients:
    """Sums gradients of a sharded model: on each rank during a step, over the ranks in its last backward pass.

    Has the methods of `GradientSum`. Gradients are divided as their weights are.
    """

    def __init__(self, model: Transformer, ranks: Ranks) -> None:
        assert isinstance(model, FSDPModule)
        self._model = model
        self._ranks = ranks
        self._set_last(False)

    def start_last_pass(self) -> None:
        """Before the last forward and backward pass of a step, which every rank has."""
        self._set_last(True)

    def finish(self) -> None:
        """After the last backward pass of a step."""
        self._set_last(False)

    def equalise(self, batches: Sequence[AnyBatch]) -> Sequence[AnyBatch]:
        """The micro-batches that this rank computes: its own, and empty ones until every rank has as many."""
        return list(in_step(batches, cast(Transformer, self._model), self._ranks))

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """√Σ g² over all gradients and ranks, as one scalar tensor, the same on every rank."""
        local = self.local(gradients)
        total = torch.stack(torch._foreach_norm(local)).double().square().sum()
        dist.all_reduce(total)
        return total.sqrt().to(local[0].dtype)

    def local(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """This rank's part of each gradient, a view."""
        return [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]

    def share_rows(self, gradient: Tensor, rows_R: Tensor) -> None:
        """Replace these rows of a gradient by their mean over all ranks, in place."""
        shards = as_shards(gradient)
        set_rows(shards, rows_R, sum_of_rows(shards, rows_R) / len(rows_R))

    def _set_last(self, last: bool) -> None:
        self._model.set_requires_gradient_sync(last)
        self._model.set_is_last_backward(last)


def in_step(batches: Iterable[AnyBatch], model: Transformer, ranks: Ranks) -> Iterator[AnyBatch]:
    """The batches of this rank, followed by empty ones until every rank has as many.

    The ranks of a sharded model compute together, so each has to run as many passes as the others.
    """
    own = iter(batches)
    while True:
        batch = next(own, None)
        having, _ = ranks.tally(int(batch is not None), False)
        if not having:
            return
        yield _empty_batch(model) if batch is None else batch


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """All weights, whole, in the memory of rank 0's CPU, under clean names; empty on the other ranks.

    Every rank has to call this.
    """
    end_forward(model)
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    copied = dist.get_world_size() > 1  # the share of a single rank is the weight itself, which later steps change
    return {
        clean_name(name): tensor if copied else tensor.clone()
        for name, tensor in state.items()
        if isinstance(tensor, Tensor)
    }


def make_buffers(model: Transformer, device: torch.device) -> None:
    """Compute the tables of positions from the config: they are not weights, and not in checkpoints."""
    for module in model.modules():
        if isinstance(module, Positions):
            for name, buffer in make_positions(model.config).named_buffers():
                setattr(module, name, buffer.to(device))


def _empty_batch(model: Transformer) -> AnyBatch:
    """A batch of one token without a loss: it adds exactly 0 to loss and gradients."""
    ids_BT, targets_BT = torch.zeros((1, 1), dtype=torch.int64), torch.full((1, 1), IGNORE)
    if isinstance(model, EncoderDecoder):
        return PairBatch(ids_BT, None, ids_BT, targets_BT, tokens=0)
    return Batch(ids_BT, targets_BT, None, tokens=0)


# --- inside -----------------------------------------------------------------------------------------------------------


def _own_rows(tensor: DTensor, rows_R: Tensor) -> Tensor:
    start, end = row_range(tensor.shape[0], tensor.device_mesh.get_local_rank(), tensor.device_mesh.size())
    return rows_R[(rows_R >= start) & (rows_R < end)] - start


def _divide(model: Transformer, mesh: DeviceMesh, policy: MixedPrecisionPolicy) -> None:
    units: list[FSDPModule] = []
    for block in model.every_block():
        # Keys and values of a memory are made before the blocks run: they are a unit of their own.
        for inner in block.modules():
            if isinstance(inner, CrossAttention):
                early = [part for part in (inner.key_value, inner.key_norm) if part is not None]
                units.extend(_unit(early if len(early) > 1 else early[0], mesh, policy))
        units.extend(_unit(block, mesh, policy))
    # In fp32, as autocast keeps them: the residual stream begins and ends here.
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    assert isinstance(model, FSDPModule)
    for name in _ENTRIES if isinstance(model, EncoderDecoder) else _ENTRIES[1:]:
        register_fsdp_forward_method(model, name)
    for unit in (*units, model):
        unit.set_gradient_divide_factor(1.0)  # each unit has its own; see above: sums, not means
        unit.set_force_sum_reduction_for_comms(True)  # not every backend knows how to multiply while it adds


def _unit(modules: nn.Module | list[nn.Module], mesh: DeviceMesh, policy: MixedPrecisionPolicy) -> list[FSDPModule]:
    fully_shard(modules, mesh=mesh, mp_policy=policy)
    first = modules[0] if isinstance(modules, list) else modules
    assert isinstance(first, FSDPModule)
    return [first]


def _policy(runtime: Runtime) -> MixedPrecisionPolicy:
    """Blocks are gathered in the dtype that they compute in, which halves the traffic; sums are computed in fp32."""
    if runtime.dtype is torch.float32:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=runtime.dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
