"""docs/architecture.md follows a generation step from the command line to the attention kernel: its table is true."""

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


@pytest.fixture
def poems(tmp_path, monkeypatch):
    """The run of the page."""
    monkeypatch.chdir(tmp_path)
    Path("poems.txt").write_text(POEM * 40, encoding="utf-8")
    options = {"steps": 2, "depth": 1, "d_model": 32, "context": 8, "batch_tokens": 16, "tokenizer": "char"}
    return mingyue.train(sources=["poems.txt"], threads=1, sample_every=0, **options).folder


def test_the_table_lists_the_functions_between_the_command_and_the_kernel(poems, monkeypatch):
    steps: list[list[tuple[str, str]]] = []
    kernel = F.scaled_dot_product_attention

    def spy(query_BHTD, *args, **kwargs):
        frame, stack = sys._getframe(1), []
        while frame is not None:
            code = frame.f_code
            if Path(code.co_filename).is_relative_to(SOURCE):
                stack.append((code.co_qualname, Path(code.co_filename).relative_to(SOURCE).as_posix()))
            frame = frame.f_back
        steps.append(stack[::-1])
        return kernel(query_BHTD, *args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    options = ["--prompt", "床前", "--max-new-tokens", "2", "--backend", "torch"]
    assert main(["generate", str(poems), *options, "--threads", "1"]) == 0
    _prompt, _first, step = steps
    for page in PAGES:
        section = page.read_text(encoding="utf-8").split("--max-new-tokens 2 --backend torch`")[1].split("\n## ")[0]
        rows = re.findall(r"^\| `([^`]+)` \| `([^`]+\.py)` \|", section, flags=re.MULTILINE)
        assert rows == step, "\n".join(f"| `{name}` | `{file}` |" for name, file in step)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_ids_of_the_page_are_those_of_the_model(page, poems):
    model = mingyue.load(poems, threads=1)
    text = page.read_text(encoding="utf-8")
    assert f"`{model.tokenizer.encode('床前')}`" in text
    assert f"`[{model.tokenizer.encode('前')}]`" in text
    assert model.generate("床前", max_new_tokens=2, temperature=0)[0].text == "前前"
