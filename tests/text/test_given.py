"""A tokenizer.json from elsewhere: its special tokens, the bytes of its ids, its faults."""

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from mingyue.config import TokenizerSettings
from mingyue.errors import TokenizerError
from mingyue.text import Tokenizer, make_tokenizer


def gpt2_like():
    """Byte-level BPE with the one special token of GPT-2."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*letters, "th", "the", "Ġthe"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[("t", "h"), ("th", "e"), ("Ġ", "the")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    return backend


def llama_like():
    """SentencePiece BPE with bytes to fall back on, as Llama 2 has it."""
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "a",
        "b",
        "▁a",
        "▁ab",
        "ab",
        "好",
    ]
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
    model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


def bert_like():
    """WordPiece."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "moon", "##light", "##s", ".", "月"]
    model = models.WordPiece(vocab={token: index for index, token in enumerate(tokens)}, unk_token="[UNK]")
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    return backend


def t5_like():
    """Unigram behind Metaspace."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -9.0), ("▁", -3.0), ("▁the", -2.0), ("moon", -2.5), ("s", -4.0)]
    backend = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=2))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<pad>", "</s>", "<unk>"])
    return backend


def word_level():
    """Whole words, no decoder; its special tokens are only in the vocabulary, where text can reach them."""
    vocab = {token: index for index, token in enumerate(["[UNK]", "<pad>", "</s>", "a", "b"])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


MAKERS = [gpt2_like, llama_like, bert_like, t5_like, word_level]
TEXTS = {
    "gpt2_like": "the moon, 好😀 the\r\n\n 42",
    "llama_like": "ab a  好😀 abab ",
    "bert_like": "The moonlight. moons 月 the",
    "t5_like": "the moons the moon",
    "word_level": "a b b zzz a",
}


@pytest.fixture(params=MAKERS, ids=lambda maker: maker.__name__)
def foreign(request):
    return request.param()


def names(tokenizer):
    return [tokenizer.token_text(index) for index in (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)]


@pytest.mark.parametrize(
    ("maker", "special", "added"),
    [
        (gpt2_like, ["<pad>", "<bos>", "<|endoftext|>"], 2),
        (llama_like, ["<pad>", "<s>", "</s>"], 1),
        (bert_like, ["[PAD]", "[CLS]", "[SEP]"], 0),
        (t5_like, ["<pad>", "<bos>", "</s>"], 1),
        (word_level, ["[PAD]", "<bos>", "<eos>"], 3),
    ],
)
def test_special_tokens_are_found_by_name_and_missing_ones_come_after_the_last_id(maker, special, added):
    backend = maker()
    before = backend.get_vocab_size()
    tokenizer = Tokenizer.from_json(backend.to_str())
    assert tokenizer.kind == "given"
    assert names(tokenizer) == special
    assert tokenizer.vocab_size == before + added
    assert sum("added as id" in note for note in tokenizer.notes) == added
    assert len({tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id}) == 3, "S8: padding is never EOS"
    for name in special:
        known = backend.token_to_id(name)
        if known is not None:
            assert tokenizer.token_text(known) == name


@pytest.mark.parametrize("name", ["<|im_start|>", "[BOS]", "<s>", "<|begin_of_text|>"])
def test_begin_marks_of_many_families_are_known(name):
    backend = gpt2_like()
    backend.add_special_tokens([name])
    assert names(Tokenizer.from_json(backend.to_str()))[1] == name


def test_a_more_telling_name_wins():
    backend = gpt2_like()
    backend.add_special_tokens(["<|im_end|>", "<|im_start|>", "<eos>", "<s>"])
    assert names(Tokenizer.from_json(backend.to_str())) == ["<pad>", "<s>", "<eos>"]


def test_ids_stay_those_of_the_library(foreign, request):
    text = TEXTS[request.node.callspec.id]
    tokenizer = Tokenizer.from_json(foreign.to_str())
    expected = foreign.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text) == tokenizer.encode_array(text).tolist() == expected
    assert tokenizer.decode(expected) == foreign.decode(expected)


def test_stream_of_a_given_tokenizer_equals_its_decode(foreign, request):
    """S7: for decoders that look at the neighbour too."""
    tokenizer = Tokenizer.from_json(foreign.to_str())
    ids = [tokenizer.bos_id, *tokenizer.encode(TEXTS[request.node.callspec.id]), tokenizer.eos_id]
    stream = tokenizer.stream()
    assert "".join(stream.push(index) for index in ids) + stream.finish() == tokenizer.decode(ids)


@given(st.sampled_from(MAKERS), st.lists(st.integers(0, 255), max_size=20))
def test_stream_equals_decode_for_any_ids_of_a_given_tokenizer(maker, numbers):
    tokenizer = Tokenizer.from_json(maker().to_str())
    ids = [number % tokenizer.vocab_size for number in numbers]
    stream = tokenizer.stream()
    assert "".join(stream.push(index) for index in ids) + stream.finish() == tokenizer.decode(ids)


@given(st.text(alphabet="ab 好😀\n", max_size=20))
def test_bytes_to_fall_back_on_read_any_text_back(text):
    tokenizer = Tokenizer.from_json(llama_like().to_str())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_text_that_spells_a_mark_is_text():
    tokenizer = Tokenizer.from_json(gpt2_like().to_str())
    ids = tokenizer.encode("the<|endoftext|><pad>")
    assert not set(ids) & tokenizer.special_ids
    assert tokenizer.decode(ids) == "the<|endoftext|><pad>"


def test_a_mark_that_text_can_reach_is_not_taken():
    """A word of the vocabulary that happens to be called </s> stays a word."""
    tokenizer = Tokenizer.from_json(word_level().to_str())
    assert set(tokenizer.encode("a </s> <pad>")) & tokenizer.special_ids == set()


def test_a_special_token_in_the_vocabulary_of_the_model_is_noted():
    backend = word_level()
    backend.add_special_tokens(["</s>"])
    tokenizer = Tokenizer.from_json(backend.to_str())
    assert names(tokenizer)[2] == "</s>" and tokenizer.encode("a </s>")[-1] == tokenizer.eos_id
    assert "text that contains </s> becomes that special token" in tokenizer.notes
    assert not any("becomes that special token" in note for note in Tokenizer.from_json(gpt2_like().to_str()).notes)


def test_a_mark_that_was_not_special_becomes_special():
    backend = gpt2_like()
    backend.add_tokens(["<pad>"])
    tokenizer = Tokenizer.from_json(backend.to_str())
    assert names(tokenizer)[0] == "<pad>" and tokenizer.pad_id == backend.token_to_id("<pad>")
    assert tokenizer.pad_id not in tokenizer.encode("<pad>")


def test_reloading_changes_nothing_more(foreign, tmp_path):
    """D8: what was added is in the file."""
    tokenizer = Tokenizer.from_json(foreign.to_str())
    tokenizer.save(tmp_path / "tokenizer.json")
    again = make_tokenizer(TokenizerSettings(tokenizer=str(tmp_path / "tokenizer.json")), iter(()))
    assert again.fingerprint == tokenizer.fingerprint and names(again) == names(tokenizer)
    assert not any("added as id" in note for note in again.notes)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert library.token_to_id(tokenizer.token_text(tokenizer.pad_id)) == tokenizer.pad_id


def test_cutting_and_padding_to_a_length_are_switched_off():
    """Text is never lost silently."""
    backend = gpt2_like()
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    tokenizer = Tokenizer.from_json(backend.to_str())
    assert len(tokenizer.encode("the moon")) == 6
    assert len(tokenizer.encode("m")) == 1


def test_what_a_vocabulary_cannot_spell_is_said():
    notes = {maker.__name__: Tokenizer.from_json(maker().to_str()).notes for maker in MAKERS}
    lossy = {name: [note for note in each if "outside its vocabulary" in note] for name, each in notes.items()}
    assert lossy["gpt2_like"] == lossy["llama_like"] == []
    assert "[UNK]" in lossy["bert_like"][0] and "[UNK]" in lossy["word_level"][0] and "<unk>" in lossy["t5_like"][0]


def test_facts_of_a_given_tokenizer():
    facts = Tokenizer.from_json(gpt2_like().to_str()).describe()
    assert facts == {"kind": "given", "vocab_size": 262, "special": 3, "model": "BPE", "merges": 3}


def test_gaps_between_ids_count_as_ids():
    vocab = {"[UNK]": 0, "a": 1, "b": 9, "<pad>": 3, "<bos>": 4, "<eos>": 5}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    backend.add_special_tokens(["<pad>", "<bos>", "<eos>"])
    tokenizer = Tokenizer.from_json(backend.to_str())
    assert tokenizer.encode("b") == [9] and tokenizer.vocab_size == 10
    assert (tokenizer.token_bytes(7), tokenizer.token_text(7)) == (b"", "")


@pytest.mark.parametrize("last", [3, 9])
def test_marks_that_the_library_would_put_into_a_gap_are_refused(last):
    """It numbers new tokens from the size of the vocabulary on: an id may then be given twice."""
    backend = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": last}, unk_token="[UNK]"))
    with pytest.raises(TokenizerError, match=rf"<pad> .*should be id {last + 1}.*makes it 3") as caught:
        Tokenizer.from_json(backend.to_str())
    assert "gaps" in (caught.value.advice or "")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"model": {', "not JSON.*line 1, column"),
        ("", "not JSON"),
        ("[1, 2]", 'no "model"'),
        ('{"add_bos_token": true}', 'no "model"'),
        ('{"model": {"type": "Nonsense"}}', "cannot|not a tokenizer.json"),
        ('{"model": {"type": "BPE", "vocab": {"a": "x"}, "merges": []}}', "not a tokenizer.json"),
        (
            '{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}',
            "not a tokenizer.json",
        ),
        ("\x80\x04pickle", "not JSON|not UTF-8"),
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path, content, expected):
    path = tmp_path / "broken.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(TokenizerError, match=rf"broken\.json: .*({expected})") as caught:
        Tokenizer.load(path)
    assert caught.value.advice


def test_every_cut_of_a_file_is_refused(char, tmp_path):
    whole = char.to_json().encode("utf-8")
    path = tmp_path / "cut.json"
    for length in range(0, len(whole), max(1, len(whole) // 60)):
        path.write_bytes(whole[:length])
        with pytest.raises(TokenizerError):
            Tokenizer.load(path)


def test_a_missing_file_is_named(tmp_path):
    for name in ("nowhere.json", "folder"):
        (tmp_path / "folder").mkdir(exist_ok=True)
        with pytest.raises(TokenizerError, match="cannot read") as caught:
            Tokenizer.load(tmp_path / name)
        assert "char, bpe, byte" in (caught.value.advice or "")


def test_a_binary_file_is_named_with_the_byte(tmp_path):
    (tmp_path / "spm.model").write_bytes(b"{}\n\xff\xfe")
    with pytest.raises(TokenizerError, match=r"spm\.model: byte 3 is not UTF-8"):
        Tokenizer.load(tmp_path / "spm.model")


def test_dropout_of_merges_is_switched_off_and_said():
    """D20: one text has one encoding; seeds and scores depend on it."""
    backend = gpt2_like()
    spec = json.loads(backend.to_str())
    spec["model"]["dropout"] = 0.5
    tokenizer = Tokenizer.from_json(json.dumps(spec))
    expected = backend.encode("the the the moon", add_special_tokens=False).ids
    assert all(tokenizer.encode("the the the moon") == expected for _ in range(20))
    assert "BPE dropout 0.5 switched off: a text always has the same ids" in tokenizer.notes
    again = Tokenizer.from_json(tokenizer.to_json())
    assert not any("dropout" in note for note in again.notes) and again.fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize(
    ("normalizer", "lost"),
    [
        (normalizers.Lowercase(), ["letter case"]),
        (normalizers.NFKC(), ["compatibility characters", "composed and decomposed"]),
        (normalizers.NFC(), ["composed and decomposed"]),
        (normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), ["accents", "composed and decomposed"]),
        (normalizers.BertNormalizer(lowercase=True), ["letter case", "accents", "white space"]),
        (normalizers.Strip(), ["white space"]),
        (normalizers.Replace(Regex(r"\s+"), " "), ["white space"]),
        (normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), []),
        (None, []),
    ],
)
def test_a_normalizer_that_makes_different_texts_the_same_is_said(normalizer, lost):
    """D20: the text is scored as another one, so its bits per byte cannot be compared."""
    backend = gpt2_like()
    if normalizer is not None:
        backend.normalizer = normalizer
    tokenizer = Tokenizer.from_json(backend.to_str())
    assert len(tokenizer.losses) == bool(lost)
    assert set(tokenizer.losses) <= set(tokenizer.notes)
    for what in ("letter case", "accents", "compatibility characters", "composed and decomposed", "white space"):
        if what in lost:
            assert what in tokenizer.losses[0]
    if "letter case" not in lost and lost:
        assert "letter case" not in tokenizer.losses[0]
