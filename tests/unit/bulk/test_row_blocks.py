"""Rows in blocks and batches: nothing lost, nothing mixed, alike in length."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selvage.bulk.plan import RowPlan
from selvage.bulk.row_blocks import RowBlock, batches, row_blocks
from selvage.bulk.rows import BadRow, Entry, Row, bad_row
from selvage.messages.inputs import ENTRY_LETTERS


def entry(number: int, text: str | None) -> Entry:
    """None makes a bad row."""
    return bad_row(number, "a", number, "no") if text is None else Row(number=number, path="a", line=number, text=text)


TEXTS = st.lists(st.sampled_from([None, "", " \n", "a", "bb", "c" * 30]), max_size=60)


@given(TEXTS, st.integers(1, 9), st.integers(1, 20), st.booleans())
def test_each_row_is_in_one_block_of_its_shard(texts: Any, most: int, size: int, keep: bool) -> None:
    """In order; empty ones are counted, bad ones kept aside."""
    plan = RowPlan(rows_per_shard=size)
    found = list(row_blocks(map(entry, range(len(texts)), texts), plan, most=most, keep_empty=keep))
    empty = 0 if keep else sum(text is not None and not text.strip() for text in texts)
    assert sum(each.empty for each in found) == empty
    assert all(len(each.rows) + len(each.bad) + each.empty <= most for each in found)
    numbers = [row.number for each in found for row in each.rows]
    wanted = [number for number, text in enumerate(texts) if text is not None and (keep or text.strip())]
    assert numbers == wanted
    assert [row.number for each in found for row in each.bad] == [i for i, text in enumerate(texts) if text is None]
    assert all(plan.shard_of(row.number) == each.shard for each in found for row in (*each.rows, *each.bad))
    assert [each.shard for each in found] == sorted(each.shard for each in found)


def test_a_block_of_long_texts_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its letters are bounded, whatever the number of rows."""
    monkeypatch.setattr("selvage.bulk.row_blocks.LETTERS", 100)
    texts = (entry(number, "x" * 60) for number in range(9))
    assert [len(each.rows) for each in row_blocks(texts, RowPlan(rows_per_shard=99), most=50, keep_empty=False)] == [
        *(2, 2, 2, 2, 1)
    ]


@pytest.mark.parametrize(
    "beside", ["x" * 60, b"x" * 60, ["x" * 30, {"key": "x" * 27}]], ids=["string", "bytes", "nested"]
)
def test_what_is_kept_beside_texts_counts_too(beside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column of megabytes would else be held thousands of times."""
    monkeypatch.setattr("selvage.bulk.row_blocks.LETTERS", 100)
    rows = (Row(number=i, path="a", line=i, text="t", extra=(beside,)) for i in range(5))
    found = list(row_blocks(rows, RowPlan(rows_per_shard=99), most=50, keep_empty=False))
    assert [len(each.rows) for each in found] == [2, 2, 1]
    assert [each.fullness == 1 for each in found] == [True, True, False]


def test_a_value_may_be_nested_deeper_than_pythons_stack() -> None:
    """JSON of a thousand levels is read."""
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    rows = [Row(number=0, path="a", line=1, text="t", extra=(deep,))]
    assert len(list(row_blocks(rows, RowPlan(rows_per_shard=9), most=5, keep_empty=False))) == 1
    while isinstance(deep, list):  # Python's own end of it recurses
        deep = deep.pop()


def test_a_block_tells_how_full_it_is() -> None:
    """By its rows, whatever became of them, or by its letters."""
    entries = [entry(i, text) for i, text in enumerate(["a", "", None, "bb"])]
    (found,) = row_blocks(entries, RowPlan(rows_per_shard=99), most=8, keep_empty=False)
    assert found.fullness == 0.5


@given(st.lists(st.integers(0, 200), max_size=60), st.integers(1, 9), st.integers(1, 500))
def test_batches_cut_a_block_up(lengths: list[int], most: int, letters: int) -> None:
    """Each row once; a batch is over its letters with one row only; the longest first."""
    block = RowBlock(shard=0, rows=[Row(number=i, path="", line=i, text="x" * each) for i, each in enumerate(lengths)])
    found = list(batches(block, most=most, letters=letters))
    assert sorted(place for batch in found for place in batch) == list(range(len(lengths)))
    for batch in found:
        assert len(batch) <= most
        assert len(batch) == 1 or sum(lengths[place] + ENTRY_LETTERS for place in batch) <= letters
    assert [lengths[place] for batch in found for place in batch] == sorted(lengths, reverse=True)


def test_refused_rows_leave_no_gap() -> None:
    """Values and rows stay side by side."""
    block = RowBlock(shard=0, rows=[Row(number=i, path="a", line=i, text="t", extra=(f"id{i}",)) for i in range(4)])
    block.bad.append(bad_row(9, "a", 9, "no"))
    block.set_values([3, 0], {"tokens": [30, 0]})
    block.set_values([2], {"tokens": [20]})
    block.refuse_row(1, "too long", has_id=True)
    rows, values = block.good_rows()
    assert [row.number for row in rows] == [0, 2, 3]
    assert values == {"tokens": [0, 20, 30]}
    assert block.bad_rows() == [
        BadRow(number=1, path="a", line=1, reason="too long", id="id1"),
        BadRow(number=9, path="a", line=9, reason="no"),
    ]
