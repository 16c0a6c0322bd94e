"""Sources → tokenizer and token files, in a folder: read once, cut into training and held-out part, encode.

The vocabulary comes from the training part alone. Text goes through in pieces, so memory stays bounded however long it
is. A folder that already holds the same is used as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mingyue.config import DataSettings, TokenizerSettings
from mingyue.data.cachekey import CORPUS_FORMAT, corpus_key
from mingyue.data.corpus import TokenCorpus, TokenView, fit_context
from mingyue.data.reading import read_pieces
from mingyue.data.report import Progress, ReadReport
from mingyue.data.store import MEMORY_BYTES, PieceStore
from mingyue.data.tokens import SHARD_TOKENS, TokenShards, TokenWriter, check_digests, digests_of
from mingyue.data.unseen import begin_id, from_ranges, to_ranges, unseen_ids
from mingyue.errors import DataError, TokenizerError
from mingyue.files import explain_os_error, seal_holds, sealed, write_text_atomically

if TYPE_CHECKING:
    from mingyue.text import Tokenizer

_MANIFEST = "corpus.json"
_TOKENIZER = "tokenizer.json"
_PARTS = ("train", "held_out")
_BEGINNING = 1 << 20  # tokens of a text that show how its lines end
_SHOWN = 1 << 18  # characters of a text whose encoding is worth showing in steps


@dataclass
class _Counts:
    documents: int = 0
    train_characters: int = 0
    held_out_characters: int = 0
    held_out_bytes: int = 0


def prepare_corpus(
    settings: DataSettings,
    tokenizer_settings: TokenizerSettings,
    folder: Path,
    *,
    context_hint: int | None = None,
    progress: Progress | None = None,
    memory_bytes: int = MEMORY_BYTES,
    shard_tokens: int = SHARD_TOKENS,
) -> tuple[Tokenizer, TokenCorpus, ReadReport]:
    """Read `settings.sources` and leave tokenizer.json, the token files and corpus.json in `folder`.

    The last `held_out` share of the characters is held out. Each document is BOS, its tokens, EOS; one that is cut in
    two ends its training part without EOS and begins its held-out part without BOS. What the folder holds is used
    again if sources (path, size, time of change) and settings are the same. `context_hint`: adds what `fit_context`
    says about that context to the report. `memory_bytes`: text above it waits in a temporary file.

    Raises `DataError`, `TokenizerError`, `SettingsError`, `MissingExtraError`.
    """
    key = corpus_key(settings, tokenizer_settings)
    found = None
    if key is not None and _recorded_key(folder) == key:
        with suppress(DataError):  # damaged: made anew
            found = load_corpus(folder)
            found[2].note(f"the tokens in {folder} are of the same text and settings: used again")
    if found is None:
        _make(
            settings,
            tokenizer_settings,
            folder,
            key=key,
            progress=progress,
            memory_bytes=memory_bytes,
            shard_tokens=shard_tokens,
        )
        found = load_corpus(folder)
    tokenizer, corpus, report = found
    if context_hint is not None:
        for note in fit_context(corpus, context_hint).notes:
            report.note(note)
    return tokenizer, corpus, report


def load_corpus(folder: Path) -> tuple[Tokenizer, TokenCorpus, ReadReport]:
    """What `prepare_corpus` left in a folder; its sources are not needed. Raises `DataError` for a damaged folder."""
    from mingyue.text import Tokenizer

    manifest = _manifest(folder)
    if manifest is None:
        raise DataError(
            f"{folder} holds no prepared text: its {_MANIFEST} is missing or cannot be read",
            advice="Prepare the text again.",
        )
    if manifest.get("format") != CORPUS_FORMAT:
        raise DataError(
            f"{folder / _MANIFEST} is of format {manifest.get('format')}; this program reads {CORPUS_FORMAT}"
        )
    if not seal_holds(manifest):
        raise DataError(
            f"{folder / _MANIFEST} is damaged: its checksum does not fit its content", advice="Prepare the text again."
        )
    try:
        tokenizer = Tokenizer.load(folder / _TOKENIZER)
        files = {part: [folder / name for name in manifest["files"][part]] for part in _PARTS}
        counts = _Counts(**manifest["counts"])
        report = ReadReport.from_dict(manifest["report"])
        unseen = from_ranges(manifest["unseen"]) if "unseen" in manifest else None
    except (KeyError, TypeError) as error:
        raise DataError(f"{folder / _MANIFEST} is damaged: {error!r}", advice="Prepare the text again.") from None
    except TokenizerError as error:
        raise DataError(error.message, advice="Prepare the text again.") from None
    parts = {
        part: TokenView(TokenShards(files[part], fingerprint=tokenizer.fingerprint), tokenizer.bos_id)
        for part in _PARTS
    }
    if unseen is None:  # prepared by a version that did not record it
        unseen = unseen_ids(parts["train"].counts(tokenizer.vocab_size), tokenizer.special_ids)
    train = parts["train"]
    corpus = TokenCorpus(
        unseen=unseen,
        begin_id=begin_id(tokenizer, train.read(0, min(len(train), _BEGINNING))),
        digest=check_digests(folder, manifest.get("digests", {})),
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


def _make(
    settings: DataSettings,
    tokenizer_settings: TokenizerSettings,
    folder: Path,
    *,
    key: str | None,
    progress: Progress | None,
    memory_bytes: int,
    shard_tokens: int,
) -> None:
    from mingyue.text import make_tokenizer

    report = ReadReport()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _clear(folder)
        with PieceStore(folder, memory_bytes=memory_bytes) as store:
            for piece in read_pieces(settings, report, progress):
                store.add(piece)
            cut = store.cut(settings.held_out)
            if settings.held_out and cut >= store.characters:
                report.note(f"{store.characters} characters are too few to hold out {settings.held_out:.1%} of them")
            merging = None if progress is None else partial(progress, "merging")
            texts = _training_texts(store, cut, progress)
            tokenizer = make_tokenizer(tokenizer_settings, texts, progress=merging)
            write_text_atomically(folder / _TOKENIZER, tokenizer.to_json())
            size, fingerprint = tokenizer.vocab_size, tokenizer.fingerprint
            with (
                TokenWriter(
                    folder, "train", vocab_size=size, fingerprint=fingerprint, shard_tokens=shard_tokens
                ) as train,
                TokenWriter(
                    folder, "held_out", vocab_size=size, fingerprint=fingerprint, shard_tokens=shard_tokens
                ) as held_out,
            ):
                counts = _encode(store, cut, tokenizer, (train, held_out), progress)
                files = {"train": train.finish(), "held_out": held_out.finish()}
        report.train_tokens, report.held_out_tokens = train.tokens, held_out.tokens
        report.held_out_characters, report.vocab_size = counts.held_out_characters, tokenizer.vocab_size
        manifest = {
            "format": CORPUS_FORMAT,
            "key": key,
            "files": {part: [path.name for path in paths] for part, paths in files.items()},
            "digests": digests_of(path for paths in files.values() for path in paths),
            "counts": asdict(counts),
            "unseen": to_ranges(unseen_ids(train.counts, tokenizer.special_ids)),
            "report": report.to_dict(),
        }
        write_text_atomically(folder / _MANIFEST, json.dumps(sealed(manifest), indent=1) + "\n")
    except OSError as error:
        message, advice = explain_os_error("the prepared text", folder, error)
        raise DataError(message, advice=advice) from None


def _encode(
    store: PieceStore,
    cut: int,
    tokenizer: Tokenizer,
    writers: tuple[TokenWriter, TokenWriter],
    progress: Progress | None,
) -> _Counts:
    train, held_out = writers
    counts = _Counts(documents=store.documents)
    at = 0
    bos, eos = [tokenizer.bos_id], [tokenizer.eos_id]
    for text, tail, first, last in store:
        if first:
            (train if at < cut else held_out).append(bos)
        inside = min(max(cut - at, 0), len(text))
        before, after = text[:inside], text[inside:]
        if before:
            train.append(tokenizer.encode_array(before, progress=_within(progress, at, before, store)))
        if after:
            held_out.append(tokenizer.encode_array(after, progress=_within(progress, at + inside, after, store)))
        at += len(text)
        if last:
            (train if at <= cut else held_out).append(eos)
        at += len(tail)
        held = after if at <= cut else after + tail
        counts.train_characters += len(text) + len(tail) - len(held)
        counts.held_out_characters += len(held)
        counts.held_out_bytes += len(held.encode("utf-8"))
        if progress is not None:
            progress("encoding", at, store.characters)
    return counts


def _within(progress: Progress | None, at: int, text: str, store: PieceStore) -> Callable[[int, int], None] | None:
    """Shows the encoding of one long text as a part of the whole."""
    if progress is None or len(text) < _SHOWN:
        return None
    return lambda done, total: progress("encoding", at + done, store.characters)


def _training_texts(store: PieceStore, cut: int, progress: Progress | None) -> Iterator[str]:
    """The text before the cut, without the separators: what a vocabulary may be made of."""
    at = 0
    for text, tail, _, _ in store:
        if at >= cut:
            return
        yield text[: cut - at]
        at += len(text) + len(tail)
        if progress is not None:
            progress("vocabulary", min(at, cut), cut)


def _clear(folder: Path) -> None:
    """Remove an older text; the manifest first, so that a crash on the way leaves nothing that looks whole."""
    (folder / _MANIFEST).unlink(missing_ok=True)
    for part in _PARTS:
        for path in [*folder.glob(f"{part}-*.tokens"), *folder.glob(f".{part}-*.tmp")]:
            path.unlink()


def _manifest(folder: Path) -> dict[str, Any] | None:
    try:
        value = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _recorded_key(folder: Path) -> str | None:
    manifest = _manifest(folder)
    return None if manifest is None else manifest.get("key")
