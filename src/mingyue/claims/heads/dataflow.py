"""The eight shapes of multi-head attention, read from the operations that really run, and where numbers are copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mingyue.charts import Chart, TextMark, WordGrid
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.nn import CAUSAL, MultiHeadAttention, Rotation, Taps
from mingyue.runtime import derive_seed
from mingyue.words import Language, Words

D_MODEL, N_HEADS = 512, 8
D_HEAD = D_MODEL // N_HEADS

_STEPS = (
    ("input", Words("input", "输入")),
    ("qkv", Words("Q, K and V by one matrix", "一个大矩阵得到 Q、K、V")),
    ("split", Words("split into heads", "拆分成头")),
    ("swap", Words("swap heads and tokens", "交换头与 token 两维")),
    ("attend", Words("attention of each head", "各头做注意力")),
    ("back", Words("swap back", "换回")),
    ("join", Words("join the heads", "拼接各头")),
    ("output", Words("output projection", "输出投影")),
)


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
def _measure(trial: Trial) -> Measurement:
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
        for step, _ in _STEPS:
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


def _judge(numbers: Numbers) -> Finding:
    shapes = numbers["shapes"].value
    if shapes < len(_STEPS):
        return Finding(
            "does not hold here",
            Words(
                f"Only {shapes:.0f} of {len(_STEPS)} shapes are as claimed.",
                f"{len(_STEPS)} 个形状中只有 {shapes:.0f} 个相符。",
            ),
        )
    all_found = Words(f"All {len(_STEPS)} shapes are as claimed", f"{len(_STEPS)} 个形状全部相符")
    explicit, fused = numbers["copied_explicit"].value, numbers["copied_fused"].value
    if not numbers["view_refused"].value and not explicit:
        return Finding("holds", Words(f"{all_found.en}, and joining is a view.", f"{all_found.zh}，拼接也只是视图。"))
    kernel = (
        Words(
            "the fused kernel lays its result out so that none is needed",
            "融合内核直接按拼接后的次序写出结果，无需复制",
        )
        if not fused
        else Words(f"the fused kernel's result too, {fused:,.0f} bytes", f"融合内核的结果也要复制 {fused:,.0f} 字节")
    )
    return Finding(
        "holds with a correction",
        Words(
            f"{all_found.en}. But heads that were swapped back cannot be joined by a view: {explicit:,.0f} bytes are "
            f"copied; {kernel.en}.",
            f"{all_found.zh}。但换回之后不能用视图拼接：要复制 {explicit:,.0f} 字节；{kernel.zh}。",
        ),
    )


def _draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    rows = measurement.tables["steps"]
    by_way = {way: [row for row in rows if row["way"] == way] for way in ("explicit", "fused")}

    def words(values: Sequence[int]) -> str:
        return ", ".join(map(str, values))

    strides = Words("strides", "步长").of(language)

    def memory(row: Mapping[str, Any]) -> TextMark:
        if row["step"] == "input":
            return TextMark("–")
        if not row["new_bytes"]:
            return TextMark(Words("view", "视图").of(language), 0.0)
        return TextMark(Words("new", "新内存").of(language), 1.0, [f"{row['new_bytes']:,} bytes"])

    cells = [
        [TextMark(words(row["shape"]), hover=[f"{strides}: {words(row['strides'])}"]), memory(row), memory(fused)]
        for row, fused in zip(by_way["explicit"], by_way["fused"], strict=True)
    ]
    columns = Words("shape", "形状"), Words("written out", "写出分数"), Words("fused kernel", "融合内核")
    return [
        WordGrid(
            Words("Eight steps of multi-head attention", "多头注意力的八步").of(language),
            cells,
            row_labels=[f"{number}. {name.of(language)}" for number, (_, name) in enumerate(_STEPS, start=1)],
            column_labels=[column.of(language) for column in columns],
            low=0.0,
            high=2.0,
            legend=Words("0: a view of what is there, 1: new memory", "0：已有内存的视图，1：占用新内存").of(language),
            note=Words(
                "Does a step take new memory, with the scores written out and with the fused kernel?",
                "每一步是否占用新内存：写出分数时与使用融合内核时。",
            ).of(language),
        )
    ]


CLAIM = Claim(
    name="dataflow",
    group="heads",
    claim=Words(
        "With d_model 512 and 8 heads the data go through eight shapes: [B, T, 512], its Q, K and V, [B, T, 8, 64], "
        "[B, 8, T, 64], attention, [B, T, 8, 64], joined to [B, T, 512], and projected.",
        "d_model 为 512、8 个头时，数据依次经过八种形状：[B, T, 512]，Q、K、V，[B, T, 8, 64]，[B, 8, T, 64]，注意力，"
        "[B, T, 8, 64]，拼接成 [B, T, 512]，输出投影。",
    ),
    prediction=Words(
        "Each of the eight shapes is found in the running code, in this order. Splitting and swapping are views. If "
        "joining needs new memory, it is no view, and the claim needs a correction.",
        "这八种形状都能按次序在运行的代码中找到；拆分和交换都是视图。若拼接要占用新内存，就不是视图，需要修正。",
    ),
    method=Words(
        "One pass of this library's attention, with every operation of torch recorded as it runs: shapes, strides, and "
        "whether a result lies in memory that is there already. Once with the scores written out, once with the "
        "fused kernel.",
        "让本库的注意力运行一次，逐一记录 torch 实际执行的操作：形状、步长、结果是否落在已有的内存里。写出分数与融合"
        "内核各记录一次。",
    ),
    measure=_measure,
    judge=_judge,
    draw=_draw,
    labels={
        "shapes": Words("shapes as claimed, of 8", "相符的形状（共 8 个）"),
        "qkv_width": Words("width of Q, K and V together: three times 512", "Q、K、V 合起来的宽度：512 的三倍"),
        "split_bytes": Words("new memory of splitting and swapping", "拆分与交换占用的新内存"),
        "view_refused": Words("torch refuses to join by a view (1 = yes)", "torch 拒绝用视图拼接（1 = 是）"),
        "copied_explicit": Words("copied to join, scores written out", "拼接时复制，写出分数"),
        "copied_fused": Words("copied to join, fused kernel", "拼接时复制，融合内核"),
    },
    correction=Words(
        "One matrix for Q, K and V gives [B, T, 3·512]. Joining is no view: after the swap the numbers of a token lie "
        "apart, and must be copied together (`.contiguous().view` or `.reshape`), unless the kernel wrote them side "
        "by side.",
        "Q、K、V 共用的大矩阵给出 [B, T, 3·512]。拼接不是 view：换回之后，同一 token 的数并不相邻，必须复制到一起"
        "（`.contiguous().view` 或 `.reshape`），除非内核本来就把它们写在一起。",
    ),
)
