"""The output layer and the loss in one function, in pieces of rows: the logits of a whole batch never exist.

The gradient of softmax and cross-entropy follows from the logits, so each piece computes its part of the gradients in
the forward pass, in place, while its logits are still in the CPU's caches.
`torch.nn.functional.linear_cross_entropy` (the reference in tests) does the same, but without label smoothing, and is
10 % slower on CPUs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mingyue.data import IGNORE

_PIECE = 256  # rows; with a vocabulary of 8,192 their logits are 8 MiB


def linear_cross_entropy(
    x_NM: Tensor, weight_VM: Tensor, targets_N: Tensor, *, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """(objective, nats) of N predictions with logits x Wᵀ, summed; targets that are `IGNORE` add nothing.

    `nats` is −Σ log P(target), without a gradient; `objective` has label smoothing ε: the target distribution is 1 − ε
    on the target plus ε / V on every id (Szegedy et al. 2016). Its gradient can be computed once.
    """
    with_gradient = torch.is_grad_enabled() and (x_NM.requires_grad or weight_VM.requires_grad)
    return _LinearCrossEntropy.apply(x_NM, weight_VM, targets_N, label_smoothing, with_gradient)  # type: ignore[return-value]


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917  # pyrefly: ignore[bad-override]  (the arguments are the function's own)
        ctx: Any,  # noqa: ANN401
        x_NM: Tensor,
        weight_VM: Tensor,
        targets_N: Tensor,
        label_smoothing: float,
        with_gradient: bool,  # inside of forward autograd is off in any case
    ) -> tuple[Tensor, Tensor]:
        vocab_size = weight_VM.shape[0]
        x_grad_NM = torch.empty_like(x_NM) if with_gradient else None
        weight_grad_VM = torch.zeros_like(weight_VM) if with_gradient else None
        nats: list[Tensor] = []
        uniform: list[Tensor] = []
        for start in range(0, x_NM.shape[0], _PIECE):
            x_PM, targets_P = x_NM[start : start + _PIECE], targets_N[start : start + _PIECE]
            counted_P1 = (targets_P != IGNORE)[:, None]
            targets_P1 = targets_P.clamp(min=0)[:, None]
            logits_PV = x_PM @ weight_VM.T
            target_logits_P1 = logits_PV.gather(1, targets_P1)
            mean_logits_P1 = logits_PV.mean(dim=1, keepdim=True) if label_smoothing else None
            highest_P1 = logits_PV.amax(dim=1, keepdim=True)
            powers_PV = logits_PV.sub_(highest_P1).exp_()  # in place; for the loss and for its gradient
            sums_P1 = powers_PV.sum(dim=1, keepdim=True)
            whole_P1 = sums_P1.log() + highest_P1
            nats.append(((whole_P1 - target_logits_P1) * counted_P1).sum())
            if mean_logits_P1 is not None:
                uniform.append(((whole_P1 - mean_logits_P1) * counted_P1).sum())
            if x_grad_NM is None or weight_grad_VM is None:
                continue
            grad_PV = powers_PV.div_(sums_P1)  # softmax − target distribution
            if label_smoothing:
                grad_PV.sub_(label_smoothing / vocab_size)
            on_target = grad_PV.new_full((1, 1), label_smoothing - 1).expand_as(targets_P1)
            grad_PV.scatter_add_(1, targets_P1, on_target)
            if not bool(counted_P1.all()):
                grad_PV.mul_(counted_P1)
            torch.mm(grad_PV, weight_VM, out=x_grad_NM[start : start + _PIECE])
            weight_grad_VM.addmm_(grad_PV.T, x_PM)
        total = torch.stack(nats).sum() if nats else x_NM.new_zeros(())
        objective = total
        if label_smoothing and uniform:
            objective = (1 - label_smoothing) * total + label_smoothing * torch.stack(uniform).sum()
        if x_grad_NM is not None and weight_grad_VM is not None:
            ctx.save_for_backward(x_grad_NM, weight_grad_VM)
        nats_alone = total.clone()
        ctx.mark_non_differentiable(nats_alone)
        return objective, nats_alone

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None, None]:  # noqa: ANN401  # pyrefly: ignore[bad-override]
        x_grad_NM, weight_grad_VM = ctx.saved_tensors
        return x_grad_NM.mul_(grad), weight_grad_VM.mul_(grad), None, None, None
