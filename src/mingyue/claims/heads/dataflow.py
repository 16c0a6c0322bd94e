"""Claim: the eight shapes of multi-head attention, read from the operations that run, and which of them copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Table, Trial, values
from mingyue.claims.figures import WordTable
from mingyue.claims.wording import Phrase
from mingyue.nn import CAUSAL, MultiHeadAttention, Rotation, Taps
from mingyue.runtime import derive_seed

D_MODEL, N_HEADS = 512, 8
D_HEAD = D_MODEL // N_HEADS

_STEPS = ("input", "qkv", "split", "swap", "attend", "back", "join", "output")
N_SHAPES = len(_STEPS)


class _Operations(TorchDispatchMode):
    """Keeps every operation with its first result, in the order in which they run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        made = func(*args, **(kwargs or {}))
        first = made[0] if isinstance(made, (tuple, list)) else made
        if isinstance(first, Tensor):
            self.seen.append((str(func.overloadpacket).removeprefix("aten."), first))
        return made


def _shape(step: str, n_rows: int, n_tokens: int) -> tuple[int, ...]:
    """What is claimed of each step; of Q, K and V together three times the width of one of them."""
    split, swapped = (n_rows, n_tokens, N_HEADS, D_HEAD), (n_rows, N_HEADS, n_tokens, D_HEAD)
    plain = (n_rows, n_tokens, D_MODEL)
    shapes = {"qkv": (n_rows, n_tokens, 3 * D_MODEL), "split": split, "swap": swapped, "attend": swapped, "back": split}
    return shapes.get(step, plain)


def _storage(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _flow(attention: MultiHeadAttention, x_BTM: Tensor, taps: Taps) -> dict[str, Tensor]:
    """The tensors of the eight steps of one pass, by what they are made of and made into.

    The projections and the attention are known by their places in the pass (taps, first and last result), the steps
    between them by their shapes and by the order of operations.
    """
    with _Operations() as operations:
        y_BTM = attention(x_BTM, CAUSAL, Rotation(), taps=taps)
    names = [name for name, _ in operations.seen]
    made = [value for _, value in operations.seen]
    query_BHTD, heads_BHTD = taps.values["query"], taps.values["heads"]
    swap, attend = _place(made, query_BHTD), _place(made, heads_BHTD)
    split = next(place for place in reversed(range(swap)) if names[place].startswith("split"))
    projected = next(place for place in range(split) if made[place].shape[-1] == 3 * D_MODEL and made[place].ndim == 3)
    back = next(place for place in range(attend + 1, len(made)) if names[place] == "transpose")
    join = next(place for place in range(back + 1, len(made)) if made[place].shape == x_BTM.shape)
    places = {"qkv": projected, "split": split, "swap": swap, "attend": attend, "back": back, "join": join}
    return {"input": x_BTM, **{step: made[place] for step, place in places.items()}, "output": y_BTM}


def _place(made: Sequence[Tensor], wanted: Tensor) -> int:
    """Where that very tensor (memory, shape and strides) was made."""
    return next(
        place
        for place, value in enumerate(made)
        if value.data_ptr() == wanted.data_ptr() and value.shape == wanted.shape and value.stride() == wanted.stride()
    )


@torch.inference_mode()
def measure(trial: Trial) -> Measurement:
    """Shape, strides and new memory of each step, with the scores written out and with the fused kernel."""
    n_rows, n_tokens = trial.pick((2, 16), (2, 16), (4, 256))
    generator = torch.Generator().manual_seed(derive_seed(trial.seed, "dataflow"))
    attention = MultiHeadAttention(D_MODEL, N_HEADS, N_HEADS, D_HEAD).eval()
    x_BTM = torch.randn(n_rows, n_tokens, D_MODEL, generator=generator)
    ways = {
        "explicit": _flow(attention, x_BTM, Taps(("query", "heads", "weights"))),
        "fused": _flow(attention, x_BTM, Taps(("query", "heads"))),
    }
    rows: list[dict[str, Any]] = []
    for way, steps in ways.items():
        before = None
        for step in _STEPS:
            value = steps[step]
            shared = before is not None and _storage(value) == _storage(before)
            rows.append(
                {
                    "way": way,
                    "step": step,
                    "shape": list(value.shape),
                    "strides": list(value.stride()),
                    "new_bytes": 0 if shared or before is None else value.untyped_storage().nbytes(),
                    "as_claimed": tuple(value.shape) == _shape(step, n_rows, n_tokens),
                }
            )
            before = value
    copied = {row["way"]: row["new_bytes"] for row in rows if row["step"] == "join"}
    try:
        ways["explicit"]["back"].view(n_rows, n_tokens, D_MODEL)
        refused = 0.0
    except RuntimeError:
        refused = 1.0
    numbers = {
        "shapes": Number.exact(min(sum(row["as_claimed"] for row in rows if row["way"] == way) for way in ways)),
        "qkv_width": Number.exact(ways["explicit"]["qkv"].shape[-1]),
        "split_bytes": Number.exact(
            sum(row["new_bytes"] for row in rows if row["step"] in ("split", "swap", "back")), "bytes"
        ),
        "view_refused": Number.exact(refused),
        "copied_explicit": Number.exact(copied["explicit"], "bytes"),
        "copied_fused": Number.exact(copied["fused"], "bytes"),
    }
    return Measurement(numbers, {"steps": rows})


def judge(numbers: Numbers) -> Judgement:
    """All shapes are found; a correction if joining the heads copies."""
    value = values(numbers)
    if value["shapes"] != N_SHAPES:
        return Judgement.not_supported("some")
    if value["split_bytes"] != 0:
        return Judgement.not_supported("split_copied")
    if not value["view_refused"] and not value["copied_explicit"]:
        return Judgement.supported("view")
    kernel = Phrase("kernel_copied" if value["copied_fused"] else "kernel_joined")
    return Judgement.corrected("copied", kernel=kernel)


def _cells(measurement: Measurement) -> Table:
    """For each step its shape, and whether it takes new memory in each way."""

    def listed(sizes: Sequence[int]) -> str:
        return ", ".join(map(str, sizes))

    cells: list[dict[str, Any]] = []
    for row in measurement.tables["steps"]:
        if row["way"] == "explicit":
            hover = ("strides", listed(row["strides"]))
            shape = {"column": "shape", "word": listed(row["shape"]), "value": None, "hover": hover}
            cells.append({"row": row["step"], **shape})
        memory: dict[str, Any] = {"word": "view", "value": 0.0, "hover": None}
        if row["step"] == "input":
            memory |= {"word": "–", "value": None}
        elif row["new_bytes"]:
            memory = {"word": "new", "value": 1.0, "hover": ("bytes", f"{row['new_bytes']:,}")}
        cells.append({"row": row["step"], "column": row["way"], **memory})
    return cells


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        WordTable("steps", rows=_cells, low=0.0, high=2.0),
    ],
    seconds=0,
)
