"""Stop texts: across pieces, held back until it is sure, never shown."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mingyue.generation.stopping import StopTexts


def run(pieces: list[str], stops: list[str], n_free: int = 0) -> tuple[list[str], bool]:
    """What is shown after each piece (the first `n_free` do not count), with what `release` gives at the end."""
    stop_texts, shown = StopTexts(stops), []
    for i, piece in enumerate(pieces):
        shown.append(stop_texts.push(piece, counts=i >= n_free))
        if stop_texts.found:
            return shown, True
    return [*shown, stop_texts.release()], False


@pytest.mark.parametrize(
    ("pieces", "stops", "shown", "found"),
    [
        (["ab", "cd", "ef"], ["de"], ["ab", "c", ""], True),
        (["ab", "cd", "xf"], ["de"], ["ab", "c", "dxf", ""], False),
        (["\n", "\n", "x"], ["\n\n"], ["", ""], True),
        (["a", "a", "b"], ["aab"], ["", "", ""], True),
        (["a", "a", "a", "b"], ["aab"], ["", "", "a", ""], True),
        (["abc"], ["c", "bc", "abc"], [""], True),
        (["ab", "d"], ["abc"], ["", "abd", ""], False),
        (["床前", "明月"], ["前明"], ["床", ""], True),
        (["end"], [], ["end", ""], False),
        (["aXbYc"], ["Y", "X"], ["a"], True),
        (["abcd"], ["abcd", "bc"], ["a"], True),  # bc is complete first, as it is when letters come one by one
    ],
    ids=str,
)
def test_by_hand(pieces, stops, shown, found):
    assert run(pieces, stops) == (shown, found)


@given(
    text=st.text("ab\n", max_size=16),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
    data=st.data(),
)
@settings(max_examples=300, deadline=None)
def test_where_the_pieces_are_cut_changes_nothing_and_no_stop_text_shows(text, stops, data):
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    expected = text[: min(ends)[1]] if ends else text
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    shown, found = run(pieces, stops)
    assert "".join(shown) == expected
    assert found == bool(ends)
    for i in range(len(pieces)):  # nothing is held back without need
        so_far, seen = "".join(shown[: i + 1]), "".join(pieces[: i + 1])
        rest = seen[len(so_far) :]
        assert found or not rest or any(stop.startswith(rest) and stop != rest for stop in stops)
        assert not any(stop in so_far for stop in stops)


def test_a_stop_text_that_ends_too_early_is_plain_text():
    assert run(["ab", "c", "ab"], ["ab"], n_free=1) == (["ab", "c", ""], True)
    assert run(["a", "b", "c"], ["ab"], n_free=2) == (["", "ab", "c", ""], False)
    assert run(["a", "b", "c"], ["ab"], n_free=1) == (["", ""], True)
    assert run(["a", "a", "a"], ["aa"], n_free=2) == (["", "a", ""], True)
