"""Every view of both kinds of model as a program uses it: plain JSON, pictures, one page that reaches for nothing."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable

import pytest
import torch

import mingyue
from mingyue.api import Inspection
from mingyue.bundle import save_bundle
from mingyue.config import EncoderDecoderConfig, ModelConfig
from mingyue.errors import MingyueError
from mingyue.inspection.view import View
from mingyue.models import build_model
from mingyue.text import byte_tokenizer, train_char

POEM = "床前明月光，疑是地上霜。举头望明月"
SIZES = {"context": 48, "d_model": 16, "n_layers": 2, "n_heads": 2, "n_kv_heads": 2, "d_head": 8, "d_ff": 16}
VIEWS: dict[str, Callable[[Inspection], View]] = {
    "attention": lambda look: look.attention(),
    "one head": lambda look: look.attention(layer=1, head=0),
    "lens": lambda look: look.lens(),
    "surprise": lambda look: look.surprise(),
    "trace": lambda look: look.trace(),
    "heads": lambda look: look.heads(),
    "logits": lambda look: look.logits(),
    "head": lambda look: look.head(1, 0),
    "lines": lambda look: look.lines(),
    "attended": lambda look: look.attended(3),
    "contexts": lambda look: look.contexts(corpus=__file__, tokens=200),
    "neighbours": lambda look: look.neighbours("a" if look.subject.of_pairs else "月"),
    "vectors": lambda look: look.vectors(*(("b", ["a b", "c b"]) if look.subject.of_pairs else ("月", [POEM]))),
}


@pytest.fixture(scope="module")
def looks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Inspection]:
    """A Mini-GPT of characters and a model of pairs of bytes, weights never trained, each reading something."""
    words, place = train_char([POEM]), tmp_path_factory.mktemp("models")
    config = ModelConfig(vocab_size=words.vocab_size, **SIZES)
    save_bundle(place / "text", config, build_model(config, seed=3).state_dict(), words, {"starts_with_bos": False})
    pairs = EncoderDecoderConfig(vocab_size=byte_tokenizer().vocab_size, n_encoder_layers=1, **SIZES)
    larger = {name: 4 * value for name, value in build_model(pairs, seed=3).state_dict().items()}
    save_bundle(place / "pairs", pairs, larger, byte_tokenizer(), {})
    return {
        "text": mingyue.inspect(place / "text", POEM),
        "pairs": mingyue.inspect(place / "pairs", "one <b>two</b>", target="eins zwei"),
    }


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens a socket fails."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_every_view_has_plain_json_and_tables_and_charts_in_both_languages(looks, kind, name):
    view = VIEWS[name](looks[kind])
    json.dumps(view.to_dict(), allow_nan=False)
    for language in ("en", "zh"):
        for table in view.tables(language):
            width = len(table.columns) or len(table.rows[0])
            assert table.rows
            assert all(len(row) == width for row in table.rows)
            assert set(table.right) <= set(table.columns)
        assert all(chart.title for chart in view.charts(language))
    assert view.title.en != view.title.zh


@pytest.mark.parametrize("ending", ["html", "png", "svg", "json"])
def test_a_view_is_written_by_the_ending_of_the_name(looks, tmp_path, ending, offline):
    if ending in ("png", "svg"):
        pytest.importorskip("vl_convert", reason="extra `plot` is not installed")
    path = tmp_path / f"attention.{ending}"
    looks["text"].save(looks["text"].attention(), path, "zh")
    content = path.read_bytes()
    begins = {"html": b"<!doctype html>", "png": b"\x89PNG", "svg": b"<svg", "json": b"{"}
    assert content.startswith(begins[ending])


def test_a_page_of_an_own_translation_says_so(looks, tmp_path):
    translator = looks["pairs"].model
    look = mingyue.inspect(translator, "ab")
    look.save(look.surprise(), tmp_path / "surprise.html")
    assert "own translation (beam 4" in (tmp_path / "surprise.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_a_report_is_one_page_in_two_languages_that_reaches_for_nothing(looks, kind, tmp_path, offline):
    pytest.importorskip("vl_convert", reason="extra `plot` is not installed")
    done: list[tuple[int, int]] = []
    looks[kind].report(tmp_path / "r.html", language="zh", progress=lambda *count: done.append(count))
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert done[0][0] == 0
    assert done[-1][0] == done[-1][1]
    assert page.index('data-language="zh"') < page.index('data-language="en"')
    for anchor in (
        "text",
        "surprise",
        "attention",
        "attended",
        "lens",
        "logits",
        "heads",
        "neighbours",
        "vectors",
        "trace",
    ):
        assert f'<section id="en-{anchor}">' in page
        assert f'<section id="zh-{anchor}">' in page
    markup = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", markup)
    assert "<b>two</b>" not in markup, "text of the user is text"


def test_a_report_of_one_word_and_of_a_text_without_any(looks, tmp_path):
    pytest.importorskip("vl_convert", reason="extra `plot` is not installed")
    model = looks["text"].model
    mingyue.inspect(model, POEM).report(tmp_path / "word.html", word="望")
    page = (tmp_path / "word.html").read_text(encoding="utf-8")
    assert 'Nearest to \\"望\\"' in page or "Nearest to &#34;望&#34;" in page
    assert "occurs 1 time" in page  # of the section that has nothing to compare, a sentence says why
    assert "只出现 1 次" in page
    mingyue.inspect(model, "，。").report(tmp_path / "none.html")
    page = (tmp_path / "none.html").read_text(encoding="utf-8")
    assert "No token of this text is a whole word" in page
    assert "No word occurs twice" in page


def test_a_report_says_which_sections_have_nothing_to_show(looks, tmp_path):
    """In the language of the page, and to whoever asked for it."""
    pytest.importorskip("vl_convert", reason="extra `plot` is not installed")
    look = mingyue.inspect(looks["text"].model, "床前明月光")
    (note,) = look.report(tmp_path / "r.html", word="霜", language="zh")
    assert "同一个词在不同位置" in note and "没有“霜”" in note
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    chinese, english = page.split('<main lang="en"')
    assert "没有“霜”" in chinese and "does not have the word" not in chinese
    assert "does not have the word" in english


def test_heads_take_several_texts(looks):
    both = looks["text"].heads(["明月光"])
    assert both.loss != looks["text"].heads().loss
    assert "2" in both.measured.about.en


def test_patching_reads_a_corrupted_text_of_the_same_length(looks):
    view = looks["text"].patching(POEM.replace("床", "光"), answer="月", instead="光")
    assert view.recovered_PT.shape == (2, len(POEM))
    assert view.recovered_PT[-1, -1] == pytest.approx(1.0, abs=1e-3)
    of_pairs = looks["pairs"].patching("two <b>one</b>", answer="a", instead="b", places="encoder.blocks.0.output")
    assert of_pairs.recovered_PT.shape == (1, len("one <b>two</b>") + 1)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda look: look.run({"blocks.0.outptu": torch.zeros_like}), "blocks.0.outptu"),
        (lambda look: look.capture("blocks.7.output"), "blocks.7.output"),
        (lambda look: look.attention(layer=2), "no layer 2"),
        (lambda look: look.neighbours("明月"), "2 tokens"),
        (lambda look: look.neighbours("月", top=0), "top = 0"),
        (lambda look: look.vectors("月", ["床前"]), "床前"),
        (lambda look: look.patching("月", answer="月", instead="光"), "tokens"),
        (lambda look: look.film(), "folder of the run"),
        (lambda look: look.save(look.trace(), "trace.pdf"), ".pdf"),
        (lambda look: look.trace().save("nowhere/trace.html"), "no folder nowhere"),
        (lambda look: look.trace().save("nowhere/trace.json"), "no folder nowhere"),
        (lambda look: look.report("report.png"), "known here: .html"),
        (lambda look: look.report("nowhere/report.html"), "no folder nowhere"),
        (lambda look: look.report("report.html", language="fr"), "en (English) or zh (Chinese)"),
        (lambda look: look.trace().save("trace.html", "fr"), "en (English) or zh (Chinese)"),
        (lambda look: look.trace().tables("fr"), "en (English) or zh (Chinese)"),
        (lambda look: look.trace().charts("fr"), "en (English) or zh (Chinese)"),
    ],
)
def test_what_cannot_be_shown_is_an_error_that_says_why(looks, call, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = looks["text"].model
    with pytest.raises(MingyueError, match=re.escape(told)):
        call(mingyue.inspect(model, POEM))
    assert not list(tmp_path.iterdir()), "nothing is written, and no folder made"
