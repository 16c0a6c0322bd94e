"""The tokenizer: text to ids and back, stored in one tokenizer.json."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Self, SupportsIndex

from mingyue.errors import TokenizerError
from mingyue.files import reason_of, write_text_atomically
from mingyue.paths import path_of
from mingyue.printable import token_symbols
from mingyue.text import spec as specs
from mingyue.text.encoders import Ids, Progress, encoder_of
from mingyue.text.normalizer import lost_by_normalizer
from mingyue.text.special import load_backend, parse, with_special_tokens
from mingyue.text.stream import StreamDecoder
from mingyue.text.token_bytes import token_bytes_of
from mingyue.words import tr

_MOST_IDS = 1 << 22  # tables have an entry for each id up to the highest, and files can name any


class Tokenizer:
    """Text to ids and back. It is one tokenizer.json, which the tokenizers library loads as well.

    Make one with `train_char`, `train_bpe`, `byte_tokenizer`, `make_tokenizer`, `from_json` or `load`.

    Attributes:
        kind: "char", "bpe", "byte", or "given" for a tokenizer.json from elsewhere.
        vocab_size: ids are 0 … vocab_size - 1.
        pad_id, bos_id, eos_id: padding, beginning and end of a document: three different ids (0, 1, 2 unless given).
        special_ids: these, and in a given tokenizer any other special ones; they decode to nothing.
        fingerprint: sha256 (hex) of the tokenizer.json in canonical form.
        notes: for the user: what had to be added to a given tokenizer.json, and what it cannot encode.
        losses: the notes about text that a given tokenizer.json reads as another text.
    """

    kind: specs.Kind
    vocab_size: int
    pad_id: int
    bos_id: int
    eos_id: int
    special_ids: frozenset[int]
    fingerprint: str
    notes: tuple[str, ...]
    losses: tuple[str, ...] = ()

    def __init__(self, spec: specs.Spec, *, source: str = "the tokenizer") -> None:
        """From the parsed content of a tokenizer.json; `source` names it in errors (`TokenizerError`)."""
        self.kind = specs.kind_of(spec)
        if self.kind == "given":
            found = with_special_tokens(spec, source)
            spec, backend = found.spec, found.backend
            self.pad_id, self.bos_id, self.eos_id = (found.ids[role] for role in ("pad", "bos", "eos"))
            self.losses = tuple(lost_by_normalizer(backend))
            self.notes = (*found.notes, *self.losses, *_gaps(spec))
        else:
            backend = load_backend(spec, source)
            self.pad_id, self.bos_id, self.eos_id = specs.PAD, specs.BOS, specs.EOS
            self.notes = ()
        highest = max(backend.get_vocab(with_added_tokens=True).values())
        if highest >= _MOST_IDS:
            raise TokenizerError(
                tr(
                    "{source}: the highest id is {highest:,}; a tokenizer has at most {most_ids:,} ids, 0 included",
                    source,
                    highest,
                    _MOST_IDS,
                ),
                advice=tr("The file is damaged, or it is not the vocabulary of a language model."),
            )
        self._spec = spec
        self._backend = backend
        self.vocab_size = highest + 1
        self.special_ids = frozenset(entry["id"] for entry in spec["added_tokens"] if entry["special"])
        self.fingerprint = specs.fingerprint(spec)
        self._encoder = encoder_of(self.kind, spec, backend)
        self._bytes = token_bytes_of(spec, backend, self.special_ids)

    def encode(self, text: str) -> list[int]:
        """Ids of the text, without BOS and EOS; the name of a special token inside the text is text.

        Raises `TokenizerError` for half of a surrogate pair, which is not a character.
        """
        ids: list[int] = self._encoder(text).tolist()
        return ids

    def encode_array(self, text: str, *, progress: Progress | None = None) -> Ids:
        """The same ids as `encode`, int32 [tokens], for texts of any length; `progress` gets characters done and all.

        Of the given tokenizers, only byte-level BPE after the split of GPT-2, Llama 3 or Qwen2 is encoded in bounded
        memory; any other as one string, since it is not known where that may be cut.
        """
        ids = self._encoder(text, progress)
        if progress is not None:
            progress(len(text), len(text))
        return ids

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """The text of the ids; special ids are left out, bytes that are not UTF-8 become U+FFFD.

        Raises `TokenizerError` for an id outside the vocabulary.
        """
        previous: int | None = None
        chunks: list[bytes] = []
        for number in ids:
            index = self._check(number)
            if index not in self.special_ids:
                chunks.append(self._bytes.after(previous, index))
                previous = index
        return b"".join(chunks).decode("utf-8", "replace")

    def stream(self) -> StreamDecoder:
        """A decoder that takes ids one at a time."""
        return StreamDecoder(self._bytes, self.special_ids, self._check)

    def token_bytes(self, index: int) -> bytes:
        """The bytes of this id; b"" for a special id."""
        index = self._check(index)
        return b"" if index in self.special_ids else self._bytes.alone(index)

    def token_text(self, index: int) -> str:
        r"""The id as printable text: `<eos>`, `明`, ` the`, `\n`, or `<E6><98>` for a part of a character."""
        index = self._check(index)
        if index in self.special_ids:
            return str(self._backend.id_to_token(index))
        data = self._bytes.alone(index)
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return "".join(f"<{byte:02X}>" for byte in data)
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)

    def token_label(self, index: int) -> str:
        """The id as tables and pictures show it: as `token_text`, but nothing is blank: ␣ a space, ⏎ a line end, ␇."""
        try:
            text = self.token_bytes(index).decode("utf-8")
        except UnicodeDecodeError:
            text = ""
        if not text:
            return self.token_text(index)
        return "".join(
            c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in token_symbols(text)
        )

    def describe(self) -> dict[str, str | int]:
        """The facts that `mingyue info` shows: kind, number of ids, of special ids, of characters or merges."""
        vocab = self._backend.get_vocab(with_added_tokens=True)
        facts: dict[str, str | int] = {"kind": self.kind, "vocab_size": self.vocab_size}
        facts["special"] = len(self.special_ids)
        if self.kind == "char":
            facts["characters"] = len(vocab) - specs.FIRST_LEARNED
        elif self.kind in ("bpe", "given"):
            if self.kind == "given":
                facts["model"] = str(self._spec["model"].get("type", "?"))
            merges = self._spec["model"].get("merges")
            if merges is not None:
                facts["merges"] = len(merges)
        return facts

    def to_json(self) -> str:
        """The text of its tokenizer.json."""
        return specs.dump(self._spec)

    @classmethod
    def from_json(cls, text: str, *, source: str = "the tokenizer") -> Self:
        """From the text of a tokenizer.json. Raises `TokenizerError` if it is damaged or something else."""
        return cls(parse(text, source), source=source)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tokenizer.json atomically. Raises `TokenizerError` if it cannot be written."""
        path = path_of(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomically(path, self.to_json() + "\n")
        except OSError as error:
            raise TokenizerError(tr("{path}: cannot write the tokenizer: {reason}", path, reason_of(error))) from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a tokenizer.json, or the one in a folder. Raises `TokenizerError` if it cannot be read."""
        path = path_of(path)
        if path.is_dir():
            path = path / "tokenizer.json"
        try:
            text = path.read_bytes().decode("utf-8")
        except OSError as error:
            raise TokenizerError(
                tr("{path}: cannot read the tokenizer: {reason}", path, reason_of(error)),
                advice=tr("Give char, bpe, byte, or the path of a tokenizer.json."),
            ) from None
        except UnicodeDecodeError as error:
            raise TokenizerError(
                tr("{path}: byte {start} is not UTF-8, so this is not a tokenizer.json", path, error.start),
                advice=tr("Convert a SentencePiece or pickle file to a tokenizer.json first."),
            ) from None
        return cls.from_json(text, source=str(path))

    def _check(self, number: SupportsIndex) -> int:
        index = number.__index__()
        if not 0 <= index < self.vocab_size:
            raise TokenizerError(
                tr("id {index} is not in the vocabulary, whose ids are 0 to {vocab_size}", index, self.vocab_size - 1),
                advice=tr("The ids come from another tokenizer, or from a model with another vocabulary."),
            )
        return index


def _gaps(spec: specs.Spec) -> list[str]:
    """What a given tokenizer does with unknown characters, if it has neither byte-level tokens nor byte fallback."""
    model = spec["model"]
    vocab = model["vocab"] if isinstance(model.get("vocab"), dict) else {piece for piece, _ in model.get("vocab", [])}
    if set(specs.byte_letters()) <= set(vocab):
        return []
    if model.get("byte_fallback") and {f"<0x{byte:02X}>" for byte in range(256)} <= set(vocab):
        return []
    unknown = model.get("unk_token")
    if model.get("unk_id") is not None:
        unknown = model["vocab"][model["unk_id"]][0]
    what = tr("becomes {unknown}", unknown) if unknown else tr("may be lost")
    return [tr("a character outside its vocabulary {what}: decoding may not give back the text", what)]
