"""JSON and TOML of our own files: what is too large, too deep or of another type is an error, never a fault."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from mingyue import parsing
from mingyue.errors import FormatError

DEEP = 100_000
HOSTILE = {
    "lists": ("[" * DEEP + "]" * DEEP, "nested more than 100"),
    "objects": ('{"a":' * DEEP + "1" + "}" * DEEP, "nested more than 100"),
    "just too deep": ("[" * 101 + "]" * 101, "nested more than 100"),
    "digits": (f"[{'9' * 5_000}]", "digits"),
    "bits": (f"[{2**64}]", "64 bits"),
    "cut": ('{"a": [1', "line 1, column 9"),
    "empty": ("", "line 1, column 1"),
}


@pytest.mark.parametrize(("text", "said"), HOSTILE.values(), ids=HOSTILE)
def test_json_beyond_the_bounds_is_refused(text, said):
    with pytest.raises(FormatError, match=said):
        parsing.parse_json(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"a = {'[' * DEEP}{']' * DEEP}", "nested more than 100"),
        (f"a = {'9' * 5_000}", "digits"),
        (f"a = {2**64}", "64 bits"),
        ("a = ", "not TOML"),
    ],
)
def test_toml_beyond_the_bounds_is_refused(text, said):
    with pytest.raises(FormatError, match=said):
        parsing.parse_toml(text)


def test_what_is_within_the_bounds_is_read():
    assert parsing.parse_json("[" * 100 + "]" * 100)
    assert parsing.parse_json(f"[{2**64 - 1}, {-(2**63)}, 1e308]") == [2**64 - 1, -(2**63), 1e308]
    assert parsing.parse_json('\ufeff{"a": "月"}'.encode()) == {"a": "月"}
    assert parsing.parse_toml(b"a = [1, 2]") == {"a": [1, 2]}


def test_a_file_is_read_up_to_its_bound_only(tmp_path, monkeypatch):
    monkeypatch.setattr(parsing, "MAX_BYTES", 1_000)
    path = tmp_path / "large.json"
    path.write_text(f'{{"a": "{"x" * 1_000}"}}', encoding="utf-8")
    with pytest.raises(FormatError, match="larger than"):
        parsing.read_json_object(path)
    path.write_text("[1]", encoding="utf-8")
    with pytest.raises(FormatError, match="object was expected"):
        parsing.read_json_object(path)
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(FormatError, match=r"byte 7 is 0xff"):
        parsing.read_json_object(path)


@pytest.mark.parametrize(
    ("value", "kind"),
    [("no", bool), (1, bool), (True, int), ("1", int), (1.5, int), ("1", float), (None, str), ([], dict), ({}, list)],
)
def test_another_type_is_never_taken_for_the_declared_one(value, kind):
    with pytest.raises(FormatError, match="'key' is"):
        parsing.take({"key": value}, "key", kind)


def test_a_missing_value_is_named_or_has_a_default():
    with pytest.raises(FormatError, match="'key' is missing"):
        parsing.take({}, "key", int)
    assert parsing.take({}, "key", bool, False) is False
    assert parsing.take({"key": 2}, "key", float) == 2.0


@dataclass
class Record:
    step: int
    loss: float | None = None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"step": "1"}, "step"),
        ({"step": True}, "step"),
        ({}, "step"),
        ({"step": 1, "other": 2}, "other"),
        ([], "object"),
    ],
)
def test_a_record_has_the_types_of_its_fields(value, said):
    with pytest.raises(FormatError, match=said):
        parsing.as_record(Record, value)


def test_a_sound_record_is_read():
    assert parsing.as_record(Record, {"step": 1, "loss": 2}) == Record(1, 2.0)
