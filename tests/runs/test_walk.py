"""docs/architecture.md follows a training step from the command line to the attention kernel: its table is true."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch.nn.functional as F

import mingyue
from mingyue.cli import main

SOURCE = Path(mingyue.__file__).parent
PAGES = [SOURCE.parents[1] / "docs" / name for name in ("architecture.md", "architecture.zh.md")]
POEM = "床前明月光，疑是地上霜。举头望明月，低头思故乡。\n"


def test_the_table_lists_the_functions_between_the_command_and_the_kernel(tmp_path, monkeypatch):
    stacks: list[list[tuple[str, str]]] = []
    kernel = F.scaled_dot_product_attention

    def spy(*args, **kwargs):
        frame, stack = sys._getframe(1), []
        while frame is not None:
            code = frame.f_code
            if Path(code.co_filename).is_relative_to(SOURCE):
                stack.append((code.co_qualname, Path(code.co_filename).relative_to(SOURCE).as_posix()))
            frame = frame.f_back
        stacks.append(stack[::-1])
        return kernel(*args, **kwargs)

    (tmp_path / "poems.txt").write_text(POEM * 40, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    options = "--steps 2 --depth 1 --d-model 32 --context 8 --batch-tokens 16 --tokenizer char --threads 1"
    assert main(["train", "poems.txt", *options.split()]) == 0
    step = next(stack for stack in stacks if ("Stepper.step", "training/step.py") in stack)
    for page in PAGES:
        section = page.read_text(encoding="utf-8").split("--tokenizer char`")[1].split("\n## ")[0]
        told = re.findall(r"^\| `([^`]+)` \| `([^`]+\.py)` \|", section, flags=re.MULTILINE)
        assert told == step, "\n".join(f"| `{name}` | `{file}` |" for name, file in step)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_batch_of_the_page_is_the_first_one(page, tmp_path, monkeypatch):
    from mingyue.training import Stepper

    taken = []
    step = Stepper.step

    def spy(this, number, micro_batches, multiplier):
        result = step(this, number, micro_batches, multiplier)
        taken.append((micro_batches, result))
        return result

    monkeypatch.setattr(Stepper, "step", spy)
    (tmp_path / "poems.txt").write_text(POEM * 40, encoding="utf-8")
    mingyue.train(
        sources=[str(tmp_path / "poems.txt")], out=str(tmp_path / "run"), steps=2, depth=1, d_model=32, context=8,
        batch_tokens=16, tokenizer="char", threads=1, sample_every=0,
    )  # fmt: skip
    ((batch,), result), _ = taken
    text = page.read_text(encoding="utf-8")
    for row in (*batch.inputs_BT.tolist(), *batch.targets_BT.tolist()):
        assert f"[{' '.join(map(str, row))}]" in text
    assert f"{result.nats:.2f} nat" in text
    assert f"{result.gradient_norm:.2f}" in text
