"""`mingyue translate` with real models: line for line, whatever the lines are and wherever they come from."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys

import pytest
import torch

import mingyue
from mingyue.bundle import save_bundle
from mingyue.cli.lines import in_pieces
from mingyue.config import EncoderDecoderConfig, ModelConfig
from mingyue.models import build_model
from mingyue.text import byte_tokenizer

LINES = ["one two", "", "三\u2028四", "a\x85b\x0cc", "the last one"]
FEW = ("--beam", "2", "--extra-tokens", "3")


def config() -> EncoderDecoderConfig:
    return EncoderDecoderConfig(
        vocab_size=byte_tokenizer().vocab_size, context=24, d_model=16, n_layers=1, n_encoder_layers=1,
        n_heads=2, n_kv_heads=2, d_head=8, d_ff=16, output_bias=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A model folder: bytes, a context of 24, weights never trained."""
    folder = tmp_path_factory.mktemp("pairs") / "model"
    weights = {name: 4 * value for name, value in build_model(config(), seed=3).state_dict().items()}
    save_bundle(folder, config(), weights, byte_tokenizer(), {"steps": 0})
    return str(folder)


@pytest.fixture(scope="module")
def line_ends(tmp_path_factory) -> str:
    """A model that writes nothing but line ends."""
    tokenizer = byte_tokenizer()
    weights = dict(build_model(config(), seed=3).state_dict())
    weights["output.bias"] = torch.zeros(tokenizer.vocab_size)
    weights["output.bias"][tokenizer.encode("\n")[0]] = 50.0
    folder = tmp_path_factory.mktemp("line_ends") / "model"
    save_bundle(folder, config(), weights, tokenizer, {"steps": 0})
    return str(folder)


@pytest.fixture
def pipe(monkeypatch):
    """What stands at standard input; its declared encoding is of no use, as on some platforms."""

    def give(content: bytes):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))

    return give


def best(model: str, lines: list[str]) -> list[str]:
    found = mingyue.load_translator(model).translate(lines, beam=2, extra_tokens=3)
    return [mingyue.api.one_line(one[0].text) for one in found]


def uncut(err: str) -> str:
    """What was noted besides the translations that were cut: this model knows no end."""
    return "".join(line for line in err.splitlines(keepends=True) if "without an end" not in line)


# --- what goes in -----------------------------------------------------------------------------------------------------


def test_each_line_in_gives_one_line_out_in_order(run, model, pipe):
    """D10: no character inside a line ends it, and an empty line stays empty."""
    pipe("\n".join(LINES).encode() + b"\n")
    code, out, err = run("translate", model, *FEW)
    assert (code, uncut(err)) == (0, "")
    assert out.split("\n") == [*best(model, LINES), ""]
    assert out.split("\n")[1] == ""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("last", [True, False])
def test_line_ends_and_marks_are_not_text(run, model, pipe, tmp_path, end, mark, last):
    """D10: BOM, CRLF and a last line without its end, from a pipe, a file and a packed file."""
    content = (mark + end.join(LINES) + end * last).encode()
    expected = "".join(f"{line}\n" for line in best(model, LINES))
    pipe(content)
    assert run("translate", model, *FEW)[:2] == (0, expected)
    (tmp_path / "in.txt").write_bytes(content)
    (tmp_path / "in.txt.gz").write_bytes(gzip.compress(content))
    for name in ("in.txt", "in.txt.gz"):
        assert run("translate", model, *FEW, "--source", str(tmp_path / name))[:2] == (0, expected), name


FILES = {
    "NUL": b"one\nt\x00wo\nthree\n",
    "Latin-1": "déjà vu, élève\n".encode("latin-1") * 3,
    "UTF-16": "one\r\nzwö\r\n".encode("utf-16"),
    "a lone carriage return at the end": b"one\ntwo\r",
    "a byte that does not fit": b"one\ntw\xff\n",
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_a_file_is_translated_as_standard_input_is(run, model, pipe, tmp_path, monkeypatch, content):
    """D10: --source refused a NUL that `<` translated, and the other way round for encodings."""
    path = tmp_path / "in.txt"
    path.write_bytes(content)
    code, out, err = run("translate", model, *FEW, "--source", str(path))
    with path.open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        again = run("translate", model, *FEW)
    assert again[:2] == (code, out) and again[2] == err.replace(str(path), "standard input")
    assert code == (2 if b"\xff" in content[2:] else 0)
    if content not in (FILES["Latin-1"], FILES["a byte that does not fit"]):
        pipe(content)
        assert run("translate", model, *FEW)[:2] == (code, out)


def test_the_size_of_the_batch_does_not_change_the_lines(run, model, pipe):
    """S9: batch 1 and batch 30."""
    lines = [f"{number} line{'s' * (number % 7)}" for number in range(40)]
    found = set()
    for size in ("1", "2", "30"):
        pipe("\n".join(lines).encode())
        found.add(run("translate", model, *FEW, "--batch-size", size)[1])
    assert len(found) == 1
    assert found.pop().count("\n") == 40


def test_draws_do_not_depend_on_the_batch_either(run, model, pipe):
    found = set()
    for size in ("1", "2", "30"):  # pieces of 1, 32 and all lines
        pipe(b"same\n" * 40)
        found.add(run("translate", model, "--sample", "--seed", "4", "--extra-tokens", "2", "--batch-size", size)[1])
    assert len(found) == 1
    assert len(set(found.pop().split("\n"))) > 2


def test_lines_may_be_given_in_words(run, model):
    code, out, _ = run("translate", model, *FEW, "--text", "one two", "--text", "the last one")
    assert (code, out.split("\n")[:-1]) == (0, best(model, ["one two", "the last one"]))
    assert run("translate", model, *FEW, "--text", "")[:2] == (0, "\n")
    code, _, err = run("translate", model, "--text", "a", "--source", "b")
    assert code == 2
    assert "both" in err


def test_no_line_in_gives_no_line_out(run, model, pipe):
    pipe(b"")
    assert run("translate", model)[:3] == (0, "", "")


def test_bytes_that_do_not_fit_are_an_error_with_the_line(run, model, pipe):
    """D4: line, byte and the flag to use."""
    pipe(b"good\nb" + "床".encode("gbk") + b"\n")
    code, _, err = run("translate", model)
    assert code == 2
    assert "line 2: byte 0xb4 does not fit utf-8" in err
    assert "--encoding" in err


@pytest.mark.parametrize("codec", ["gb18030", "utf-16", "utf-16-le"])
def test_another_encoding_can_be_named(run, model, pipe, codec):
    pipe("床前\n明月".encode(codec))
    code, out, _ = run("translate", model, *FEW, "--encoding", codec)
    assert (code, out.split("\n")[:-1]) == (0, best(model, ["床前", "明月"]))
    pipe(b"a\n")
    code, _, err = run("translate", model, "--encoding", "no-such")
    assert code == 2
    assert "no-such" in err


def test_a_line_longer_than_the_context_is_named_beside_the_lines_not_in_them(run, model, pipe):
    """S6: a documented crop with a warning."""
    pipe(b"a\n" * 40 + b"b" * 60 + b"\nc\n")
    code, out, err = run("translate", model, "--beam", "1", "--extra-tokens", "0", "--batch-size", "2")
    assert code == 0
    assert out.count("\n") == 42
    assert "Line 41 has more tokens than the context of 24" in err


def test_pieces_are_read_one_after_the_other():
    read = []

    def lines():
        for number in range(5):
            read.append(number)
            yield str(number)

    pieces = in_pieces(lines(), 2)
    assert next(pieces) == ["0", "1"]
    assert read == [0, 1]
    assert list(pieces) == [["2", "3"], ["4"]]


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX pipe")
def test_with_batch_size_1_a_line_is_answered_before_the_next_is_read(model):
    command = [sys.executable, "-m", "mingyue", "translate", model, "--beam", "1", "--batch-size", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(2):
            process.stdin.write(b"one\n")
            process.stdin.flush()
            assert process.stdout.readline().endswith(b"\n")
        process.stdout.close()  # and a reader that goes away ends it quietly
        process.stdin.write(b"one\n" * 2)
        process.stdin.close()
        assert uncut(process.stderr.read().decode()) == ""
        assert process.wait(timeout=60) == 141


# --- a person at the terminal -----------------------------------------------------------------------------------------


def test_lines_that_are_typed_are_answered_one_by_one(run, model, monkeypatch, pipe):
    pipe(b"")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    typed = iter(["one two", "the last one"])
    answered = []

    def ask(_prompt: str = "") -> str:
        answered.append(sys.stdout.getvalue().count("\n") if hasattr(sys.stdout, "getvalue") else None)
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", ask)
    code, out, err = run("translate", model, *FEW)
    assert code == 0
    assert out.split("\n")[:-1] == best(model, ["one two", "the last one"])
    assert answered == [0, 1, 2]
    assert "Ctrl-D" in err


# --- what comes out ---------------------------------------------------------------------------------------------------


def test_a_line_end_in_a_translation_does_not_shift_the_lines_after_it(run, line_ends, pipe):
    pipe(b"ab\ncd\n")
    code, out, _ = run("translate", line_ends, "--beam", "1", "--extra-tokens", "1")
    assert (code, out) == (0, "   \n   \n")
    record = json.loads(run("translate", line_ends, "--beam", "1", "--text", "a", "--extra-tokens", "0", "--json")[1])
    assert record["translations"][0]["text"] == "\n"
    assert record["translations"][0]["finished"] is False


def test_several_translations_stand_in_moses_lines(run, model, pipe):
    pipe(b"one two\n\nx\n")
    code, out, _ = run("translate", model, *FEW, "--n-best", "2")
    assert code == 0
    expected = [
        f"{number} ||| {mingyue.api.one_line(one.text)} ||| {one.score:.4f}"
        for number, best in enumerate(
            mingyue.load_translator(model).translate(["one two", "", "x"], beam=2, n_best=2, extra_tokens=3)
        )
        for one in best
    ]
    assert out.split("\n")[:-1] == expected
    assert [line.split(" ||| ")[0] for line in expected] == ["0", "0", "1", "1", "2", "2"]


def test_json_is_one_object_for_each_line(run, model, pipe):
    pipe("one\n\n三\n".encode())
    code, out, _ = run("translate", model, *FEW, "--n-best", "2", "--json")
    assert code == 0
    found = [json.loads(line) for line in out.splitlines()]
    assert [(one["line"], one["source"]) for one in found] == [(1, "one"), (2, ""), (3, "三")]
    for one in found:
        assert len(one["translations"]) == 2
        for translation in one["translations"]:
            assert set(translation) == {"text", "score", "log_prob", "finished"}
            assert translation["log_prob"] <= 0


def test_alignments_are_weights_in_json_and_pairs_of_tokens_in_lines(run, model):
    arguments = ("translate", model, *FEW, "--text", "abcd", "--text", "", "--align")
    record, empty = (json.loads(line) for line in run(*arguments, "--json")[1].splitlines())
    (one,) = record["translations"]
    assert record["source_tokens"] == ["a", "b", "c", "d", "<eos>"]
    assert len(one["alignment"]) == len(one["tokens"]) > 0
    for row in one["alignment"]:
        assert len(row) == 5
        assert sum(row) == pytest.approx(1, abs=1e-4)
    assert empty["source_tokens"] == empty["translations"][0]["alignment"] == []
    written = one["alignment"][:-1] if one["finished"] else one["alignment"]
    most = [max(range(5), key=row.__getitem__) for row in written]
    pairs = " ".join(f"{place}-{number}" for number, place in enumerate(most) if place < 4)
    lines = run(*arguments)[1].split("\n")
    assert lines[0] == f"{mingyue.api.one_line(one['text'])} ||| {pairs}"
    assert lines[1] == " ||| "


def test_an_output_file_appears_when_it_is_whole(run, model, pipe, tmp_path):
    path = tmp_path / "out.txt"
    pipe(b"one two\nx\n")
    code, out, err = run("translate", model, *FEW, "--output", str(path))
    assert (code, out, uncut(err)) == (0, "", "")
    assert path.read_bytes().decode("utf-8") == "".join(f"{line}\n" for line in best(model, ["one two", "x"]))
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_translated_before_an_error_is_kept_beside_the_old_file(run, model, pipe, tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("old\n", encoding="utf-8")
    pipe(b"one two\n\xff\n")
    code, _, err = run("translate", model, *FEW, "--batch-size", "1", "--output", str(path))
    assert code == 2
    assert path.read_text(encoding="utf-8") == "old\n"
    assert (tmp_path / "out.txt.part").read_bytes().decode("utf-8") == f"{best(model, ['one two'])[0]}\n"
    assert "out.txt.part" in err


def test_an_output_that_cannot_be_written_is_said(run, model, pipe, tmp_path):
    pipe(b"a\n")
    code, _, err = run("translate", model, "--output", str(tmp_path / "nowhere" / "out.txt"))
    assert code == 2
    assert "--output" in err


def test_lines_that_go_into_a_file_are_utf_8_whatever_the_platform_says(model, monkeypatch, pipe):
    """D5: the encoding is explicit."""
    from mingyue.cli import main

    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii", newline="\r\n")
    monkeypatch.setattr(sys, "stdout", screen)
    pipe("床\n".encode())
    assert main(["translate", model, "--beam", "1", "--json"]) == 0
    screen.flush()
    (line,) = screen.buffer.getvalue().splitlines()
    assert json.loads(line.decode("utf-8"))["source"] == "床"
    assert "床".encode() in line


# --- the wrong model --------------------------------------------------------------------------------------------------


def test_a_model_of_one_text_is_sent_to_the_verb_that_uses_it(run, tmp_path):
    words = byte_tokenizer()
    small = ModelConfig(
        vocab_size=words.vocab_size, context=8, d_model=8, n_layers=1, n_heads=1, n_kv_heads=1, d_head=8, d_ff=8
    )
    save_bundle(tmp_path / "model", small, build_model(small, seed=1).state_dict(), words, {})
    code, out, err = run("translate", str(tmp_path / "model"), "--text", "a")
    assert (code, out) == (2, "")
    assert "mingyue generate" in err


def test_info_counts_both_halves(run, model):
    total = sum(weight.numel() for weight in mingyue.load_translator(model).module.parameters())
    code, out, _ = run("info", model)
    assert code == 0
    assert f"{total:,}" in out
    for word in ("encoder", "decoder", "n_encoder_layers"):
        assert word in out
    parameters = json.loads(run("info", model, "--json")[1])["parameters"]
    assert parameters["total"] == total


def test_every_setting_is_an_option_and_the_form_of_the_lines_is_told(run):
    _, out, _ = run("translate", "--help")
    for name in mingyue.TranslateSettings.model_fields:
        assert f"--{name.replace('_', '-')}" in out
    assert "number ||| translation ||| score" in " ".join(re.sub("[│╭╮╰╯]", " ", out).split())


# --- what must not be lost --------------------------------------------------------------------------------------------


def test_an_output_that_is_also_read_is_refused(run, model, tmp_path):
    """The file that is read would be replaced: however it is spelled."""
    source = tmp_path / "in.txt"
    source.write_text("one\n", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    for name in (str(source), str(tmp_path / "folder" / ".." / "in.txt")):
        code, _, err = run("translate", model, "--source", str(source), "--output", name)
        assert code == 2
        assert "would be lost" in err
    assert source.read_text(encoding="utf-8") == "one\n"


def test_an_output_that_has_no_place_is_refused_before_any_work(run, model, tmp_path, pipe):
    pipe(b"one\n")
    code, _, err = run("translate", model, "--output", str(tmp_path / "none" / "out.txt"))
    assert code == 2
    assert f"there is no folder {tmp_path / 'none'}" in err
    code, _, err = run("translate", model, "--output", str(tmp_path))
    assert code == 2
    assert "is a folder" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", [("--temperature", "0.5"), ("--top-k", "3"), ("--top-p", "0.5")])
def test_what_only_draws_use_is_refused_where_nothing_is_drawn(run, model, option):
    code, _, err = run("translate", model, "--text", "a", *option)
    assert code == 2
    assert "give sample" in err
    assert run("translate", model, "--text", "a", "--sample", *option)[0] == 0


def test_no_option_is_advised_that_the_verb_does_not_have(run, model, tmp_path):
    """D4: a damaged file, in a verb that cannot leave lines out."""
    (tmp_path / "in.txt").write_bytes("床前明月光\n".encode() * 20 + b"\xff\n")
    code, _, err = run("translate", model, "--source", str(tmp_path / "in.txt"))
    assert code == 2
    assert "line 21" in err
    assert "--skip-bad" not in err
    code, _, err = run("translate", model, "--source", str(tmp_path / "in.txt"), "--skip-bad")
    assert code == 2
