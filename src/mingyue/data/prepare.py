"""Sources → tokenizer and token files, in a folder: read once, cut into training and held-out part, encode.

The vocabulary comes from the training part alone. The text is processed in pieces, so memory is bounded whatever its
length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mingyue.config import DataSettings, TokenizerSettings
from mingyue.data.corpus import TokenCorpus, TokenView, fit_context
from mingyue.data.holdout import FileSplit, Repeats, describe_split
from mingyue.data.prepared import FORMAT, TOKENIZER, PreparedFolder, identity_of, key_of
from mingyue.data.reading import read_pieces
from mingyue.data.report import Progress, ReadReport
from mingyue.data.sources import expand_sources
from mingyue.data.store import MEMORY_BYTES, PieceStore, StoredPiece
from mingyue.data.tokens import SHARD_TOKENS, TokenShards, TokenWriter, check_digests
from mingyue.data.unseen import begin_id, from_ranges, to_ranges, unseen_ids
from mingyue.files import write_text_atomically
from mingyue.parsing import as_record
from mingyue.text import Tokenizer, make_tokenizer, missing_characters
from mingyue.words import tr

_BEGINNING = 1 << 20  # tokens of a text that show how its lines end
_SHOWN = 1 << 18  # characters of a text whose encoding is worth showing in steps


@dataclass(frozen=True)
class KeptVocabulary:
    """The vocabulary of a model that is trained further."""

    tokenizer: Tokenizer
    unseen: tuple[int, ...]
    """Ids that its training so far never used: those that the new text uses are no longer unseen."""


@dataclass
class _Counts:
    documents: int = 0
    train_characters: int = 0
    held_out_characters: int = 0
    held_out_bytes: int = 0
    held_out_documents: int = 0
    repeated_documents: int = 0
    repeated_characters: int = 0


def prepare_corpus(
    settings: DataSettings,
    tokenizer_settings: TokenizerSettings,
    folder: Path,
    *,
    kept: KeptVocabulary | None = None,
    context_hint: int | None = None,
    progress: Progress | None = None,
    memory_bytes: int = MEMORY_BYTES,
    shard_tokens: int = SHARD_TOKENS,
) -> tuple[Tokenizer, TokenCorpus, ReadReport]:
    """Read `settings.sources` and leave tokenizer.json, the token files and corpus.json in `folder`.

    The last `held_out` share of the characters is held out, of several files that of each (`data.holdout`). Each
    document is BOS, its tokens, EOS; one that is cut in two ends its training part without EOS and begins its held-out
    part without BOS (or with one, behind other held-out text). A folder that was prepared from the same sources (path,
    size, time of change) and settings is used again. `kept`: a vocabulary that is used instead of a new one; the report
    says what it lacks. `context_hint`: adds the notes of
    `fit_context` for that context to the report. `memory_bytes`: text beyond it is kept in a temporary file.

    Raises `DataError`, `TokenizerError`, `SettingsError`, `MissingExtraError`.
    """
    prepared = _prepared(folder)

    def make() -> dict[str, Any]:
        report = ReadReport()
        with PieceStore(folder, memory_bytes=memory_bytes) as store:
            splits = _read(settings, store, report, progress)
            merging = None if progress is None else partial(progress, "merging")
            if kept is None:
                texts = _training_texts(store, splits, progress)
                tokenizer = make_tokenizer(tokenizer_settings, texts, progress=merging)
            else:
                tokenizer = kept.tokenizer
                missing = missing_characters(tokenizer, (text for text, _, _, _ in store)).describe()
                if missing is not None:
                    report.note(missing)
            write_text_atomically(folder / TOKENIZER, tokenizer.to_json())
            with (
                prepared.writer("train", tokenizer, shard_tokens) as train,
                prepared.writer("held_out", tokenizer, shard_tokens) as held_out,
            ):
                counts = _encode(store, splits, tokenizer, (train, held_out), progress)
                files = {"train": train.finish(), "held_out": held_out.finish()}
        report.train_tokens, report.held_out_tokens = train.tokens, held_out.tokens
        report.held_out_characters, report.vocab_size = counts.held_out_characters, tokenizer.vocab_size
        _note_repeats(counts, report)
        unseen = unseen_ids(train.counts, tokenizer.special_ids)
        if kept is not None:
            unseen = tuple(sorted(set(unseen) & set(kept.unseen)))
        return {
            "files": {part: [path.name for path in paths] for part, paths in files.items()},
            "counts": asdict(counts),
            "unseen": to_ranges(unseen),
            "report": report.to_dict(),
        }

    tokenizer, corpus, report = prepared.prepare(_key(settings, tokenizer_settings, kept), make, load_corpus)
    if context_hint is not None:
        for note in fit_context(corpus, context_hint).notes:
            report.note(note)
    return tokenizer, corpus, report


def load_corpus(folder: Path) -> tuple[Tokenizer, TokenCorpus, ReadReport]:
    """What `prepare_corpus` left in a folder; its sources are not needed. Raises `DataError` for a damaged folder."""
    prepared = _prepared(folder)
    with prepared.opened() as manifest:
        tokenizer = Tokenizer.load(folder / TOKENIZER)
        files = prepared.files(manifest)
        counts = as_record(_Counts, manifest["counts"])
        report = ReadReport.from_dict(manifest["report"])
        unseen = from_ranges(manifest["unseen"]) if "unseen" in manifest else None
    digest = check_digests(folder, manifest.get("digests", {}))  # before an id is read: a damaged one may be any number
    parts = {
        part: TokenView(TokenShards(paths, fingerprint=tokenizer.fingerprint), tokenizer.bos_id)
        for part, paths in files.items()
    }
    if unseen is None:  # prepared by a version that did not record it
        unseen = unseen_ids(parts["train"].counts(tokenizer.vocab_size), tokenizer.special_ids)
    train = parts["train"]
    corpus = TokenCorpus(
        unseen=unseen,
        begin_id=begin_id(tokenizer, train.read(0, min(len(train), _BEGINNING))),
        digest=digest,
        train=train,
        held_out=parts["held_out"],
        vocab_size=tokenizer.vocab_size,
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        fingerprint=tokenizer.fingerprint,
        starts_with_bos=counts.documents > 1,
        **asdict(counts),
    )
    return tokenizer, corpus, report


def _prepared(folder: Path) -> PreparedFolder:
    return PreparedFolder(folder, "corpus.json", "text", ("train", "held_out"))


def _key(settings: DataSettings, tokenizer: TokenizerSettings, kept: KeptVocabulary | None) -> str | None:
    """The key of sources and settings; None if a source is a pipe, whose content cannot be known beforehand."""
    sources = identity_of(expand_sources(settings.sources, ReadReport(), with_field=settings.field is not None))
    if sources is None:
        return None
    how = settings.model_dump(exclude={"sources", "attend_across_documents"})
    identity: list[object] = [FORMAT, sources, how, tokenizer.model_dump()]
    if len(sources) > 1:
        identity.append(tr("held out of each file"))  # older versions took the end of the last one
    if kept is not None:
        identity.append([kept.tokenizer.fingerprint, to_ranges(kept.unseen)])
    return key_of(identity, tokenizer)


def _read(settings: DataSettings, store: PieceStore, report: ReadReport, progress: Progress | None) -> list[FileSplit]:
    """Read the sources into `store`; returns what is held out of each file."""
    source = None
    for piece in read_pieces(settings, report, progress):
        if piece.source != source:
            source = piece.source
            store.begin_file(source)
        store.add(StoredPiece(piece.text, piece.tail, piece.first, piece.last))
    splits = store.splits(settings.held_out)
    if settings.held_out and not any(split.held_out for split in splits):
        report.note(
            tr(
                "{characters} characters are too few to hold out {held_out:.1%} of them",
                store.characters,
                settings.held_out,
            )
        )
    if (sentence := describe_split(splits)) is not None:
        report.note(sentence)
    return splits


def _note_repeats(counts: _Counts, report: ReadReport) -> None:
    if counts.repeated_documents:
        share = counts.repeated_characters / counts.held_out_characters
        report.note(
            tr(
                "{repeated_documents:,} of {held_out_documents:,} held-out documents ({share:.0%} of "
                "the held-out characters) are trained on as well",
                counts.repeated_documents,
                counts.held_out_documents,
                share,
            )
        )


def _encode(
    store: PieceStore,
    splits: Sequence[FileSplit],
    tokenizer: Tokenizer,
    writers: tuple[TokenWriter, TokenWriter],
    progress: Progress | None,
) -> _Counts:
    train, held_out = writers
    counts, repeats = _Counts(documents=store.documents), Repeats()
    bos, eos = [tokenizer.bos_id], [tokenizer.eos_id]
    at = begin = 0
    joined = False
    files = iter(splits)
    split = next(files)
    for text, tail, first, last in store:
        while at >= split.end:
            split = next(files)
        cut = split.cut
        if first:
            joined = at < cut  # a held-out part would begin in the middle of the document
            (train if joined else held_out).append(bos)
            begin = at
        inside = min(max(cut - at, 0), len(text))
        before, after = text[:inside], text[inside:]
        if before:
            train.append(tokenizer.encode_array(before, progress=_within(progress, at, before, store)))
        if after:
            if joined and held_out.tokens:  # behind the held-out part of another file
                held_out.append(bos)
            joined = False
            held_out.append(tokenizer.encode_array(after, progress=_within(progress, at + inside, after, store)))
        at += len(text)
        repeats.add(text)
        if last:
            (train if at <= cut else held_out).append(eos)
            repeats.end(trained=at <= cut, held_out=begin >= cut)
        at += len(tail)
        held = after if at <= cut else after + tail
        counts.train_characters += len(text) + len(tail) - len(held)
        counts.held_out_characters += len(held)
        counts.held_out_bytes += len(held.encode("utf-8"))
        if progress is not None:
            progress("encoding", at, store.characters)
    counts.held_out_documents, counts.repeated_documents, counts.repeated_characters = repeats.count()
    return counts


def _within(progress: Progress | None, at: int, text: str, store: PieceStore) -> Callable[[int, int], None] | None:
    """Progress of one long text as a part of the whole."""
    if progress is None or len(text) < _SHOWN:
        return None
    return lambda done, total: progress("encoding", at + done, store.characters)


def _training_texts(store: PieceStore, splits: Sequence[FileSplit], progress: Progress | None) -> Iterator[str]:
    """The text before the cuts, without the separators: what a vocabulary may be learnt from."""
    at = seen = 0
    total = sum(split.cut - split.start for split in splits)
    files = iter(splits)
    split = next(files)
    for text, tail, _, _ in store:
        while at >= split.end:
            split = next(files)
        size = len(text) + len(tail)
        if at < split.cut:
            yield text[: split.cut - at]
            seen += min(size, split.cut - at)
            if progress is not None:
                progress("vocabulary", seen, total)
        at += size
