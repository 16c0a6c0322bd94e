"""A page with the main views of one text: a section for each, with a sentence on how to read its figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mingyue.charts import Chart, Section, check_output_path, write_page
from mingyue.config import EncoderDecoderConfig
from mingyue.errors import GenerationError
from mingyue.inspection.attended import attended_view
from mingyue.inspection.attention import attention_view
from mingyue.inspection.command import ONE_TEXT, SEED, Command, Inspected, Option, Progress
from mingyue.inspection.curve import has_log
from mingyue.inspection.heads import MOST_TOKENS, heads_view
from mingyue.inspection.lens import lens_view
from mingyue.inspection.logits import logits_view
from mingyue.inspection.neighbours import NeighboursView, about_counts, neighbours_view
from mingyue.inspection.subject import Reading, Subject
from mingyue.inspection.surprise import surprise_view
from mingyue.inspection.tokens import token_string
from mingyue.inspection.trace import trace_view
from mingyue.inspection.vectors import vectors_view
from mingyue.inspection.view import View
from mingyue.models import sizes
from mingyue.words import LANGUAGES, Language, TextTable, Words, check_language, sentences, stored, tr

_Part = Chart | TextTable | str
_Parts = dict[Language, list[_Part]]

TITLE = tr("Inside the model")
WORDS_SHOWN = 3
"""Words whose neighbours are shown when no word is given."""


@dataclass(frozen=True)
class _Head:
    """The text above the figures of a section."""

    title: Words
    how: Words
    """How to read the figures."""


_NO_WORDS = tr("No token of this text is a whole word.")
_NOT_TWICE = tr(
    "No word occurs twice in this text: `mingyue inspect vectors MODEL --word … --texts …` compares several texts."
)
_HEADS = {
    "surprise": _Head(
        tr("Surprise"),
        tr(
            "Each token is coloured by −log P given the tokens before it: 0 is certain; the "
            "larger, the less likely. Hover over a token to see its probability and the most "
            "likely tokens."
        ),
    ),
    "attention": _Head(
        tr("Attention"),
        tr(
            "Each small map is one head of one layer. A row is a query token, a column a key "
            "token; the colour is the weight from 0 to 1, and each row sums to 1. Masked cells "
            "are exactly 0. Click a map to enlarge it and see its tokens."
        ),
    ),
    "attended": _Head(
        tr("What the last token attends to"),
        tr(
            "The text, coloured by the attention weights of its last token, averaged over all "
            "layers and heads. `mingyue inspect attended` shows other positions and single heads."
        ),
    ),
    "lens": _Head(
        tr("What each layer would predict"),
        tr(
            "After every layer the vector at each position is decoded as if the model ended "
            "there: which token would come next? A column is a position, a row a layer, the "
            "colour is the probability of the token shown. Some predictions are final in low "
            "layers; others change up to the last one."
        ),
    ),
    "logits": _Head(
        tr("Where the prediction comes from"),
        tr(
            "The logit of the most likely token after the text is a sum to which each part of "
            "the model adds directly. A positive bar raises the logit. What a part changes in "
            "later layers is credited to those layers."
        ),
    ),
    "heads": _Head(
        tr("Attention heads"),
        tr(
            "Heads are labelled by their attention on probe texts, with the score of the label "
            "and the score of uniform attention. The loss without a head measures its effect; a "
            "high score alone does not show it. Only changes of the loss that are clear of their "
            "standard errors are coloured."
        ),
    ),
    "neighbours": _Head(
        tr("Nearest tokens"),
        tr(
            "Tokens whose embeddings point in the most similar direction (cosine; 1 = the same "
            "direction). The input table embeds the tokens that are read, the output table "
            "predicts the next token."
        ),
    ),
    "vectors": _Head(
        tr("One word at several positions"),
        tr(
            "One word at several positions: the embedding is the same, and with each layer the "
            "vectors depend more on the context. A cosine far below 1 shows that the model "
            "distinguishes the uses; compare it with the band of random pairs."
        ),
    ),
    "curve": _Head(
        tr("Training"),
        tr(
            "The losses of the run that made this model: on the text that it was trained on, and "
            "on text that was held out. If only the first one falls, the model memorises its "
            "text."
        ),
    ),
    "trace": _Head(
        tr("Every step"),
        tr(
            "Every step from ids to loss, read from the running code: its name, its shape in "
            "letters and in numbers, its parameters and FLOPs, the formula, and the line of "
            "source that computes it."
        ),
    ),
}


def write_report(
    path: str | Path,
    inspected: Inspected,
    *,
    language: Language = "en",
    word: str | None = None,
    seed: int = 0,
    remarks: Sequence[Words] = (),
    progress: Progress | None = None,
) -> list[str]:
    """Write a page about one text, in English and Chinese, `language` first; `remarks` are in the first section.

    `word` selects the word of its sections (default: words of the text); `progress` receives the sections done and
    all. If a section has no result, the page and the returned notes state the reason. Raises `SettingsError`
    for a name that does not end in .html, a missing folder, and an unknown language.
    """
    check_output_path(path, (".html",))
    check_language(language)
    subject, reading = inspected.subject, inspected.reading
    plans: list[tuple[str, Callable[[], _Parts]]] = [
        ("surprise", lambda: _both(_shown(surprise_view(subject, reading), tables=1))),
        ("attention", lambda: _both(_shown(attention_view(subject, reading)))),
        ("attended", lambda: _both(_shown(attended_view(subject, reading), tables=0))),
        ("lens", lambda: _both(_shown(lens_view(subject, reading), tables=1))),
        ("logits", lambda: _both(_shown(logits_view(subject, reading), tables=1))),
        ("heads", lambda: _both(_shown(_heads(inspected, reading, seed)))),
        ("neighbours", lambda: _neighbours(inspected, reading, word)),
        ("vectors", lambda: _vectors(subject, reading, word, seed)),
        ("trace", lambda: _both(_shown(trace_view(subject, reading)))),
    ]
    if inspected.folder is not None and has_log(inspected.folder):
        plans.append(("curve", lambda: _both(_shown(inspected.curve(), tables=1))))
    sections, notes = [_first(subject, reading, remarks)], list[Words]()
    for number, (anchor, look) in enumerate(plans):
        if progress is not None:
            progress(number, len(plans))
        sections.append(_section(anchor, look, notes))
    if progress is not None:
        progress(len(plans), len(plans))
    others = tuple(one for one in LANGUAGES if one != language)
    write_page(path, title=TITLE, sections=sections, languages=(language, *others))
    return [note.of(language) for note in notes]


def _section(anchor: str, look: Callable[[], _Parts], notes: list[Words]) -> Section:
    """A section; if a view has no result for this text, a sentence with the reason, which is noted too."""
    title, how = _HEADS[anchor].title, _HEADS[anchor].how
    try:
        found = look()
    except GenerationError as error:
        why = tr("{reason}.", stored(error.message).mapped(_capitalised))
        notes.append(tr("The section {title!r} has no figures. {why}", title, why))
        return Section(title, {language: [why.of(language)] for language in LANGUAGES}, anchor)
    return Section(title, {language: [how.of(language), *found[language]] for language in LANGUAGES}, anchor)


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _both(make: Callable[[Language], list[_Part]]) -> _Parts:
    return {language: make(language) for language in LANGUAGES}


def _shown(view: View, tables: int | None = None) -> Callable[[Language], list[_Part]]:
    """The charts of a view, and its first `tables` tables: the others repeat the tooltips of a chart."""
    return lambda language: [*view.charts(language), *view.tables(language)[:tables]]


def _first(subject: Subject, reading: Reading, remarks: Sequence[Words]) -> Section:
    """The text, and the size of the model."""
    title = tr("The text and the model")
    parts: _Parts = {
        language: [*(remark.of(language) for remark in remarks), _facts(subject, reading, language)]
        for language in LANGUAGES
    }
    return Section(title, parts, "text")


def _facts(subject: Subject, reading: Reading, language: Language) -> TextTable:
    config, counted = subject.module.config, sizes(subject.module.config)
    rows = list[tuple[Words, str]]()
    if reading.source is not None:
        rows.append((tr("source"), f"{reading.source}"))
        rows.append((tr("target"), reading.text))
        rows.append((tr("tokens"), f"{len(reading.source_pieces):,} → {len(reading.pieces):,}"))
    else:
        rows.append((tr("text"), reading.text))
        rows.append((tr("tokens"), f"{len(reading.pieces):,}"))
    encoder = f"{config.n_encoder_layers} + " if isinstance(config, EncoderDecoderConfig) else ""
    rows += [
        (tr("layers"), f"{encoder}{config.n_layers}"),
        (tr("heads"), tr("{n_heads} (d_head {d_head})", config.n_heads, config.d_head)),
        (tr("width"), f"{config.d_model:,}"),
        (tr("vocabulary"), f"{config.vocab_size:,}"),
        (tr("parameters"), f"{counted.parameters:,}"),
    ]
    return TextTable("", (), [(name.of(language), value) for name, value in rows])


def _heads(inspected: Inspected, reading: Reading, seed: int) -> View:
    """Heads on held-out texts of the run; on the text of the page where there are none: one text is short."""
    run = inspected.run_texts
    held_out = list[Reading]() if run is None else run.held_out(MOST_TOKENS)
    return heads_view(inspected.subject, probes=None if held_out else [reading], held_out=held_out, seed=seed)


def _words_of(subject: Subject, reading: Reading) -> list[str]:
    """The tokens of a text that consist of letters or characters of a script, each once, in order."""
    tokenizer = subject.source_tokenizer or subject.tokenizer
    ids = reading.ids_T if reading.source_ids_S is None else reading.source_ids_S
    found = (token_string(tokenizer, index) or "" for index in ids.tolist())
    return list(dict.fromkeys(word for word in found if word.strip().isalpha()))


def _neighbours(inspected: Inspected, reading: Reading, word: str | None) -> _Parts:
    """Charts of the given word, or tables of some words of the text."""
    subject, run = inspected.subject, inspected.run_texts
    if word is not None:
        return _both(_shown(neighbours_view(subject, word, run=run)))
    words = [one for one in _words_of(subject, reading) if _is_token(subject, one)][:WORDS_SHOWN]
    views = [neighbours_view(subject, one, run=run) for one in words]
    return _both(lambda language: [_neighbour_table(views, language)] if views else [_NO_WORDS.of(language)])


def _neighbour_table(views: Sequence[NeighboursView], language: Language) -> TextTable:
    """A column for each word and embedding table, the nearest tokens from top to bottom."""
    found = [one for view in views for one in view.nearest]
    tables = [re.split("[（(]", one.table.of(language))[0].strip() for one in found]
    columns = [tr("{piece}: {table}", one.piece, table).of(language) for one, table in zip(found, tables, strict=True)]
    rows = [
        [f"{one.pieces_K[rank]} {one.cosines_K[rank]:.2f}" if rank < len(one.pieces_K) else "" for one in found]
        for rank in range(max(len(one.pieces_K) for one in found))
    ]
    notes = dict.fromkeys(note.of(language) for one in found for note in about_counts(one, marked=False))
    return TextTable("", columns, rows, note=sentences(list(notes), language))


def _is_token(subject: Subject, word: str) -> bool:
    """Whether the word is a single token, which has a row in an embedding table."""
    tokenizers = [subject.tokenizer, subject.source_tokenizer or subject.tokenizer]
    return any(len(tokenizer.encode(word)) == 1 for tokenizer in tokenizers)


def _vectors(subject: Subject, reading: Reading, word: str | None, seed: int) -> _Parts:
    """The given word, or the first that occurs twice in the text."""
    text = reading.text if reading.source is None else reading.source
    words = [one for one in _words_of(subject, reading) if text.count(one) > 1] if word is None else [word]
    if not words:
        return _both(lambda language: [_NOT_TWICE.of(language)])
    return _both(_shown(vectors_view(subject, words[0], [text], seed=seed)))


COMMAND = Command(
    None,
    options=(
        *ONE_TEXT,
        Option("word", str, "Word shown in the sections on vectors and nearest tokens.", "words of the text"),
        SEED,
    ),
)
