"""One counting of positions, one sign, one word for each thing in all views of a model, in both languages."""

from __future__ import annotations

import json
import re

import pytest

from mingyue.inspection.attention import attention_view
from mingyue.inspection.film import film_view
from mingyue.inspection.frames import take_frame
from mingyue.inspection.heads import heads_view
from mingyue.inspection.lens import lens_view
from mingyue.inspection.neighbours import neighbours_view
from mingyue.inspection.patching import patching
from mingyue.inspection.surprise import surprise_view
from mingyue.inspection.trace import trace_view
from mingyue.inspection.vectors import vectors_view

TEXT, WORD = "abcdefghxij", "x"  # long enough for the table of the largest weights as well as short enough for all
KINDS = ("one text", "one text with <bos>", "pair")
LANGUAGES = ("en", "zh")


@pytest.fixture
def read(lively, lively_pairs):
    """`read(kind)`: a model, its reading of `TEXT`, and the same with the word replaced."""

    def made(kind, text=TEXT):
        if kind == "pair":
            subject = lively_pairs()
            return subject, subject.read(text, text), subject.read(text, text.replace(WORD, "y"))
        subject = lively(starts_with_bos="bos" in kind)
        return subject, subject.read(text), subject.read(text.replace(WORD, "y"))

    return made


def all_views(subject, reading, other):
    frames = [take_frame(subject, reading, step) for step in (1, 2)]
    return {
        "surprise": surprise_view(subject, reading),
        "attention": attention_view(subject, reading),
        "head": attention_view(subject, reading, layer=0, head=0),
        "lens": lens_view(subject, reading),
        "heads": heads_view(subject, probes=[reading]),
        "neighbours": neighbours_view(subject, WORD),
        "vectors": vectors_view(subject, WORD, [TEXT, f"b{TEXT}"]),
        "trace": trace_view(subject, reading),
        "film": film_view(frames),
        "patching": patching(subject, reading, other, answer="a", instead="b"),
    }


def texts_of(view, language):
    """Everything that a view says: tables, and titles, notes, labels and hover texts of its charts."""
    tables = [one.to_dict() for one in view.tables(language)]
    charts = [vars(chart) for chart in view.charts(language)]
    return json.dumps([tables, charts], ensure_ascii=False, default=str)


@pytest.mark.parametrize("kind", KINDS)
def test_chinese_has_its_own_punctuation_in_every_view(read, kind):
    """Texts put together from pieces had the colons, commas, quotes and spaces of English between Chinese."""
    for name, view in all_views(*read(kind)).items():
        charts = [*view.charts("zh"), *view.pictures("zh")]
        said = [chart.caption for chart in charts] + [chart.title for chart in charts]
        said += [text for chart in charts for text in strings(chart.spec())]
        for table in view.tables("zh"):
            said += [table.title, table.note, *table.columns, *(cell for row in table.rows for cell in row)]
        for text in said:
            told = re.sub("`[^`]*`|[abcdefghxij] (?=[abcdefghxij])", "", text)
            assert not re.search(r"[\u4e00-\u9fff] ?[:,;]( |$)|[\u4e00-\u9fff]['\"]|[，。、；：！？）] (?!\[)", told), (
                name,
                text,
            )


def strings(part):
    """Every text in a spec."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict):
        for one in part.values():
            yield from strings(one)
    elif isinstance(part, list):
        for one in part:
            yield from strings(one)


def _column(table, *names):
    """The cells under one of these headings."""
    number = next(at for at, name in enumerate(table.columns) if name in names)
    return [row[number] for row in table.rows]


def _found(table, words, *, positions=("position", "位置")):
    """{position} of the rows whose token is the word."""
    tokens = _column(table, *words)
    return {int(at) for at, token in zip(_column(table, *positions), tokens, strict=True) if token == WORD}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("text", [TEXT, "abcdefgh" * 2 + "xij"])
def test_a_token_has_one_position_in_every_table_chart_and_json(read, kind, language, text):
    """V5: counted from 0, <bos> included where the model reads it: 3 in one view was 4 in another."""
    subject, reading, other = read(kind, text)
    at = reading.pieces.index(WORD)
    assert at == text.index(WORD) + (kind != "one text")

    surprise = surprise_view(subject, reading)
    number = surprise.pieces_N.index(WORD)
    assert surprise.to_dict()["position_N"][number] == at
    assert _found(surprise.tables(language)[1], ["token"]) == {at}
    assert surprise.charts(language)[0].marks[number].hover[0].startswith(f"{at}:{WORD}")

    lens = lens_view(subject, reading)
    assert lens.to_dict()["position_T"][lens.pieces_T.index(WORD)] == at
    grid = lens.charts(language)[0]
    assert f"{at}:{WORD}" in grid.cells[0][list(grid.column_labels).index(WORD)].hover[0]
    shown = _found(lens.tables(language)[1], ["read", "读到"])
    assert shown == {at}

    frame = take_frame(subject, reading, 1)
    film = film_view([frame])
    saved = film.to_dict()["frames"][0]
    assert saved["position_T"][saved["pieces_T"].index(WORD)] == at
    scene = film.charts(language)[0].steps[0]
    assert f"{at}:{WORD}" in scene.words[1][list(scene.word_columns).index(WORD)].hover[0]

    one_head = attention_view(subject, reading, layer=0, head=0)
    for part, table in zip(one_head.parts, one_head.tables(language), strict=True):
        source = part.part == "encoder"
        wanted = text.index(WORD) if source else at
        listed = one_head.to_dict()[part.part]
        assert listed["query_positions"][listed["queries"].index(WORD)] == wanted
        if table.columns[0]:
            assert _found(table, ["token"]) == {wanted}
        else:
            assert [row[0] for row in table.rows if row[0].endswith(f":{WORD}")] == [f"{wanted}:{WORD}"]
    for part, table in zip(one_head.parts, attention_view(subject, reading).tables(language), strict=True):
        for cell in (row[-1] for row in table.rows if row[-1]):
            query, key = re.fullmatch(r"(\d+:\S+) → (\d+:\S+) \d\.\d\d", cell).groups()
            assert query in {f"{n}:{piece}" for n, piece in enumerate(part.query_pieces)}
            assert key in {f"{n}:{piece}" for n, piece in enumerate(part.key_pieces)}

    patch = patching(subject, reading, other, answer="a", instead="b")
    assert patch.clean_pieces.index(WORD) == at
    for position, token in zip(
        _column(patch.tables(language)[0], "position", "位置"), _column(patch.tables(language)[0], "token"), strict=True
    ):
        assert token.split("←")[-1] == reading.pieces[int(position)]

    vectors = vectors_view(subject, WORD, [text, f"b{text}"])
    wanted = text.index(WORD) + (kind == "one text with <bos>")  # of a pair the source, which has no <bos>
    assert vectors.to_dict()["position_N"] == [wanted, wanted + 1]
    assert _column(vectors.tables(language)[1], "position", "位置") == [str(wanted), str(wanted + 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_view_has_one_word_for_each_thing_and_one_sign(read, kind):
    """V5: layer (a block is one of tokens), nats, ⏎; what is shown of log P is −log P."""
    subject, reading, other = read(kind)
    for name, view in all_views(subject, reading, other).items():
        english, chinese = texts_of(view, "en"), texts_of(view, "zh")
        assert not re.search(r"\b[Bb]lock \d", english), name
        assert not re.search(r"块 \d|词表示|块 ?\d", chinese), name
        assert not re.search(r"\bnat\b", english), name
        assert "nats" not in chinese, name
        if name != "trace":  # which has the formula of log softmax
            for text in (english, chinese):
                assert not re.search(r"(?<!−)log P", text), name


def test_a_line_end_and_a_control_character_are_symbols_in_every_view(lively):
    """V5: ⏎ and ␣ everywhere, and ␇ for a control character, never a blank or an escape."""
    from mingyue.inspection import Subject
    from mingyue.text import train_char

    words = train_char(["ab x\n\x07"])
    subject = Subject(lively(vocab_size=words.vocab_size).module, words)
    reading = subject.read("a x\n\x07bx a\n")
    assert reading.pieces == ("a", "␣", "x", "⏎", "␇", "b", "x", "␣", "a", "⏎")
    assert [words.token_label(index) for index in reading.ids_T.tolist()] == list(reading.pieces)
    view = vectors_view(subject, "x", ["a x\n\x07bx a\n"])
    assert view.labels_N[0] == "1. a [x]⏎␇bx a…"
    near = neighbours_view(subject, "x", top=50)
    assert {"⏎", "␇", "␣"} <= set(near.nearest[0].pieces_K)
