"""Errors for people: what was wrong, and what to do."""

from __future__ import annotations

import inspect

import pytest

from mingyue import errors
from mingyue.errors import MingyueError

every_error = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]


def test_advice_stands_on_its_own_line():
    error = MingyueError("tokens.bin, byte 12: 5 ids are missing", advice="Copy it again.")
    assert str(error) == "tokens.bin, byte 12: 5 ids are missing\nCopy it again."
    assert (error.message, error.advice) == ("tokens.bin, byte 12: 5 ids are missing", "Copy it again.")


def test_without_advice_the_message_is_all():
    error = MingyueError("no text")
    assert (str(error), error.advice) == ("no text", None)


@pytest.mark.parametrize("cls", every_error, ids=lambda cls: cls.__name__)
def test_one_family_that_says_when_each_is_raised(cls):
    assert issubclass(cls, MingyueError)
    assert inspect.getdoc(cls)
    with pytest.raises(MingyueError):
        raise cls("what", advice="do")
