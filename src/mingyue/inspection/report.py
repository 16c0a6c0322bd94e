"""All views of one text in one page: a section each, with a sentence on how to read its pictures."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from mingyue.charts import Chart, Section
from mingyue.config import EncoderDecoderConfig
from mingyue.errors import GenerationError
from mingyue.inspection.attention import attention_view
from mingyue.inspection.heads import heads_view
from mingyue.inspection.lens import lens_view
from mingyue.inspection.neighbours import NeighboursView, neighbours_view
from mingyue.inspection.subject import Reading, Subject
from mingyue.inspection.surprise import surprise_view
from mingyue.inspection.tokens import spelled
from mingyue.inspection.trace import trace_view
from mingyue.inspection.vectors import vectors_view
from mingyue.inspection.view import View
from mingyue.models import sizes
from mingyue.words import Language, NothingToShowError, TextTable, Words

_Part = Chart | TextTable | str
_Parts = dict[Language, list[_Part]]

LANGUAGES: tuple[Language, ...] = ("en", "zh")
TITLE = Words("Inside the model", "模型的内部")
WORDS_SHOWN = 3
"""Words whose neighbours are shown where none is asked for."""

_SURPRISE = Words(
    "Each token is coloured by −log P, how unlikely the model found it after what stands before it: pale was expected, "
    "dark was a surprise. Point at a token to see its probability, and what the model would rather have read.",
    "每个 token 按 −log P 着色：颜色浅，说明读完前文就料到了它；颜色深，说明它出乎意料。"
    "把指针放在 token 上，可以看到它的概率，以及模型更想读到什么。",
)
_ATTENTION = Words(
    "Each small map is one head of one layer. A row is a token that asks, a column a token that it looks at; the "
    "darker a cell, the larger the weight, and a row sums to 1. What the mask hides is exactly 0. Click a map to see "
    "it large, with its tokens.",
    "每张小图是某一层的一个头。一行是发问的 token，一列是被看的 token；颜色越深，权重越大，每行的和为 1。"
    "被掩码挡住的格子恰好是 0。点击小图可以放大，并看到各个 token。",
)
_LENS = Words(
    "After every layer the vector at each place is read out as if the model ended there: what would it say next? "
    "A column is a place of the text, a row a layer, the colour is the probability of the word that is shown. "
    "What settles in low layers was easy; what changes at the end needed the whole model.",
    "在每一层之后，都当作模型到此为止，读出它在每个位置接下来会说什么。"
    "一列是文本中的一个位置，一行是一层，颜色是所示词的概率。"
    "低层就定下来的词容易；到最后才改变的词，要靠整个模型。",
)
_HEADS = Words(
    "Heads are labelled by what they do on probe texts, with the score that earned the label and that of a head which "
    "looks everywhere alike. The loss when a head is switched off says whether it matters: a clear label does not.",
    "每个头按它在探测文本上的表现贴标签，旁边是得到标签的分数，以及处处平均看的头会得到的分数。"
    "一个头重不重要，要看关掉它之后的损失；标签清楚并不等于重要。",
)
_NEIGHBOURS = Words(
    "Words whose embeddings point most nearly the same way (cosine; 1 = the same direction). The input table is what "
    "the model reads with, the output table what it speaks with.",
    "嵌入方向最接近的词（余弦，1 表示方向相同）。输入表是模型用来读的，输出表是用来说的。",
)
_VECTORS = Words(
    "One word at several places: the embedding is the same, and layer by layer the vectors take in what stands around "
    "them. A cosine far below 1 says that the model tells the uses apart; compare it with the band of random pairs.",
    "同一个词出现在几个位置：嵌入相同，然后逐层吸收周围的内容。"
    "余弦远低于 1，说明模型把这些用法区分开了；可与随机词对的范围比较。",
)
_TRACE = Words(
    "Every step from ids to loss, read from the running code: what it is called, its shape in letters and in numbers, "
    "its parameters and FLOPs, the formula, and the line of source that computes it.",
    "从 id 到损失的每一步，都取自正在运行的代码：名字、用字母和数字写的形状、参数量与 FLOPs、公式，"
    "以及计算它的那一行源码。",
)
_NO_WORDS = Words("No token of this text is a word of its own.", "这段文本里没有能单独成词的 token。")
_NOT_TWICE = Words(
    "No word stands twice in this text: `mingyue inspect MODEL vectors --word … --texts …` compares several texts.",
    "这段文本里没有出现两次的词：`mingyue inspect MODEL vectors --word … --texts …` 可以比较几段文本。",
)
_TITLES = {
    "surprise": Words("Surprise", "意外程度"),
    "attention": Words("Attention", "注意力"),
    "lens": Words("What each layer would say", "每一层会说什么"),
    "heads": Words("What the heads do", "各个头在做什么"),
    "neighbours": Words("Nearest words", "最近的词"),
    "vectors": Words("One word in several places", "同一个词在不同位置"),
    "trace": Words("Every step", "每一步"),
}


def report(
    subject: Subject,
    reading: Reading,
    *,
    word: str | None = None,
    seed: int = 0,
    remarks: Sequence[Words] = (),
    progress: Callable[[int, int], None] | None = None,
    tell: Callable[[Words], None] | None = None,
) -> list[Section]:
    """The sections of a page about one text, for `charts.write_page`, in English and Chinese.

    `word` is what the sections on words are about (none: words of the text), `remarks` stand in the first section,
    `progress` gets the sections done and all. What a model has no answer to is said in its place, and to `tell`.
    """
    plans: list[tuple[Words, Callable[[], _Parts], str]] = [
        (_SURPRISE, lambda: _both(_shown(surprise_view(subject, reading), tables=1)), "surprise"),
        (_ATTENTION, lambda: _both(_shown(attention_view(subject, reading))), "attention"),
        (_LENS, lambda: _both(_shown(lens_view(subject, reading), tables=1)), "lens"),
        (_HEADS, lambda: _both(_shown(heads_view(subject, probes=[reading], seed=seed))), "heads"),
        (_NEIGHBOURS, lambda: _neighbours(subject, reading, word), "neighbours"),
        (_VECTORS, lambda: _vectors(subject, reading, word, seed), "vectors"),
        (_TRACE, lambda: _both(_shown(trace_view(subject, reading))), "trace"),
    ]
    sections = [_first(subject, reading, remarks)]
    for number, (how, look, anchor) in enumerate(plans):
        if progress is not None:
            progress(number, len(plans))
        sections.append(_section(how, look, anchor, tell))
    if progress is not None:
        progress(len(plans), len(plans))
    return sections


def _section(how: Words, look: Callable[[], _Parts], anchor: str, tell: Callable[[Words], None] | None) -> Section:
    """A section; where a view has no answer to this text, a sentence that says why."""
    title = _TITLES[anchor]
    try:
        found = look()
    except GenerationError as error:
        why = Words(error.message, f"这一节给不出结果（{error.message}）")
        if isinstance(error, NothingToShowError):
            why = error.words
        why = Words(f"{why.en[:1].upper()}{why.en[1:]}.", f"{why.zh}。")
        if tell is not None:
            tell(Words(f"The section {title.en!r} has no pictures. {why.en}", f"“{title.zh}”一节没有图。{why.zh}"))
        return Section(title, {language: [why.of(language)] for language in LANGUAGES}, anchor)
    return Section(title, {language: [how.of(language), *found[language]] for language in LANGUAGES}, anchor)


def _both(make: Callable[[Language], list[_Part]]) -> _Parts:
    return {language: make(language) for language in LANGUAGES}


def _shown(view: View, tables: int | None = None) -> Callable[[Language], list[_Part]]:
    """The charts of a view, and its first so many tables: the others say in rows what a chart says on hover."""
    return lambda language: [*view.charts(language), *view.tables(language)[:tables]]


def _first(subject: Subject, reading: Reading, remarks: Sequence[Words]) -> Section:
    """What is read, and by what."""
    title = Words("The text and the model", "文本与模型")
    parts: _Parts = {
        language: [*(remark.of(language) for remark in remarks), _facts(subject, reading, language)]
        for language in LANGUAGES
    }
    return Section(title, parts, "text")


def _facts(subject: Subject, reading: Reading, language: Language) -> TextTable:
    config, counted = subject.module.config, sizes(subject.module.config)
    rows = list[tuple[Words, str]]()
    if reading.source is not None:
        rows.append((Words("source", "源文本"), f"{reading.source}"))
        rows.append((Words("target", "译文"), reading.text))
        rows.append((Words("tokens", "token 数"), f"{len(reading.source_pieces):,} → {len(reading.pieces):,}"))
    else:
        rows.append((Words("text", "文本"), reading.text))
        rows.append((Words("tokens", "token 数"), f"{len(reading.pieces):,}"))
    encoder = f"{config.n_encoder_layers} + " if isinstance(config, EncoderDecoderConfig) else ""
    rows += [
        (Words("layers", "层数"), f"{encoder}{config.n_layers}"),
        (Words("heads", "头数"), f"{config.n_heads} × {config.d_head}"),
        (Words("width", "宽度"), f"{config.d_model:,}"),
        (Words("vocabulary", "词表"), f"{config.vocab_size:,}"),
        (Words("parameters", "参数"), f"{counted.parameters:,}"),
    ]
    return TextTable("", (), [(name.of(language), value) for name, value in rows])


def _words_of(subject: Subject, reading: Reading) -> list[str]:
    """The tokens of a text that are words or characters of a script, each once, in order."""
    tokenizer = subject.source_tokenizer or subject.tokenizer
    ids = reading.ids_T if reading.source_ids_S is None else reading.source_ids_S
    found = (spelled(tokenizer, index) or "" for index in ids.tolist())
    return list(dict.fromkeys(word for word in found if word.strip().isalpha()))


def _neighbours(subject: Subject, reading: Reading, word: str | None) -> _Parts:
    """The word that was asked for with its charts, or a table of some words of the text."""
    if word is not None:
        return _both(_shown(neighbours_view(subject, word), tables=0))
    views = [neighbours_view(subject, one) for one in _words_of(subject, reading) if _is_token(subject, one)]
    return _both(
        lambda language: [_neighbour_table(views[:WORDS_SHOWN], language)] if views else [_NO_WORDS.of(language)]
    )


def _neighbour_table(views: Sequence[NeighboursView], language: Language) -> TextTable:
    """A column for each word and table, its nearest words from top to bottom."""
    found = [one for view in views for one in view.nearest]
    columns = [f"{one.piece}: {re.split('[（(]', one.table.of(language))[0].strip()}" for one in found]
    rows = [
        [f"{one.pieces_K[rank]} {one.cosines_K[rank]:.2f}" if rank < len(one.pieces_K) else "" for one in found]
        for rank in range(max(len(one.pieces_K) for one in found))
    ]
    return TextTable("", columns, rows)


def _is_token(subject: Subject, word: str) -> bool:
    """Whether the word alone is one token, as a table of vectors has it."""
    tokenizers = [subject.tokenizer, subject.source_tokenizer or subject.tokenizer]
    return any(len(tokenizer.encode(word)) == 1 for tokenizer in tokenizers)


def _vectors(subject: Subject, reading: Reading, word: str | None, seed: int) -> _Parts:
    """The word that was asked for, or the first that stands twice in the text."""
    text = reading.text if reading.source is None else reading.source
    words = [one for one in _words_of(subject, reading) if text.count(one) > 1] if word is None else [word]
    if not words:
        return _both(lambda language: [_NOT_TWICE.of(language)])
    return _both(_shown(vectors_view(subject, words[0], [text], seed=seed)))
