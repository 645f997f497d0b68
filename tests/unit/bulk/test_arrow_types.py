"""Columns of Parquet, whatever types Arrow gives them: texts of every kind of string, kept columns of every kind."""

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from selvage.bulk.failures import Failed
from support.bulk_fakes import FakeService, embed, rows

TEXTS = pa.array(["one", "", None, "two", "  ", "one"])
INDICES = (pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64())
STRINGS = {
    "string": TEXTS,
    "large_string": TEXTS.cast(pa.large_string()),
    "string_view": TEXTS.cast(pa.string_view()),
    "a dictionary of large strings": TEXTS.cast(pa.large_string()).dictionary_encode(),
    **{f"a dictionary by {index}": TEXTS.cast(pa.dictionary(index, pa.string())) for index in INDICES},
}
NULLS = {
    "null": pa.nulls(3),
    "a dictionary of nothing": pa.DictionaryArray.from_arrays(pa.array([None] * 3, pa.int8()), pa.nulls(0)),
    "string": pa.array([None] * 3, pa.string()),
    "no rows": pa.nulls(0),
}
NO_STRINGS = {
    "binary": pa.array([b"a"]),
    "large_binary": pa.array([b"a"], pa.large_binary()),
    "binary_view": pa.array([b"a"], pa.binary_view()),
    r"fixed_size_binary\[1\]": pa.array([b"a"], pa.binary(1)),
    "int64": pa.array([1]).dictionary_encode(),
    "bool": pa.array([True]),
    "dictionary<values=binary": pa.array([b"a"]).dictionary_encode(),
    "list<element: string>": pa.array([["a"]]),
    "struct<text: string>": pa.array([{"text": "a"}]),
    "extension<arrow.uuid>": pa.array([b"0123456789abcdef"], pa.uuid()),
}
FLAGS = pytest.mark.parametrize("flags", [(), ("--skip-errors",)], ids=["", "skipping"])
STEPS = ["low", "mid", "high"]


def unchecked(values: list[bytes | None], kind: Any) -> Any:
    """Strings that may be no UTF-8."""
    return pa.Array.from_buffers(kind, len(values), pa.array(values, pa.binary()).buffers())


def by_number(numbers: list[int | None], values: Any, *, ordered: bool = False) -> Any:
    """A dictionary as pandas writes small ones: categories by one byte."""
    return pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int8()), values, ordered=ordered)


def stored(path: Path, **columns: Any) -> str:
    pq.write_table(pa.table(columns), path)
    return str(path)


def kept(folder: Path, *inputs: str) -> Any:
    """The column `note` of these inputs, as a folder of shards has it."""
    embed(folder / "kept", *inputs, "--keep", "note")
    return pq.read_table(folder / "kept").column("note")


@FLAGS
@pytest.mark.parametrize("texts", STRINGS.values(), ids=STRINGS)
def test_strings_are_texts_however_arrow_lays_them_out(tmp_path: Path, texts: Any, flags: tuple[str, ...]) -> None:
    """Nulls, empty texts and white space alone are left out."""
    service = FakeService()
    summary = embed(tmp_path / "o", stored(tmp_path / "a.parquet", text=texts), *flags, services=[service])
    assert (summary.rows, summary.empty, summary.bad) == (3, 3, 0)
    assert sorted(text for batch in service.sent for text in batch) == ["one", "one", "two"]


@FLAGS
@pytest.mark.parametrize("texts", NULLS.values(), ids=NULLS)
def test_a_column_of_nulls_alone_has_empty_texts(tmp_path: Path, texts: Any, flags: tuple[str, ...]) -> None:
    """Left out like others, in front of a file that has texts too; embedded where empty texts are."""
    files = [stored(tmp_path / "a.parquet", text=texts), stored(tmp_path / "b.parquet", text=["b"])]
    summary = embed(tmp_path / "o", *files, *flags)
    assert (summary.rows, summary.empty, summary.bad) == (1, len(texts), 0)
    assert embed(tmp_path / "alone", files[0], *flags).rows == 0
    assert embed(tmp_path / "all", *files, "--keep-empty", *flags).rows == 1 + len(texts)


@pytest.mark.parametrize("kind", [pa.string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_a_string_that_cannot_be_sent_is_a_bad_row(tmp_path: Path, kind: Any) -> None:
    """Invalid UTF-8 and too many letters; the other rows are embedded, also where a dictionary holds all strings."""
    values = [b"a", b"\xff", b"b", b"x" * (13 << 20)]
    texts = by_number([0, 1, 2, 3, 0], unchecked(values, pa.string()))
    if not pa.types.is_dictionary(kind):
        texts = unchecked([*values, b"a"], pa.string())
        texts = texts if kind == pa.string() else pa.array([*values, b"a"], pa.binary_view()).view(kind)
    path = stored(tmp_path / "a.parquet", text=texts, id=[*range(5)])
    with pytest.raises(Failed, match=r"a\.parquet:2: column 'text' is not valid UTF-8 at byte 0 \(--skip-errors"):
        embed(tmp_path / "ended", path)
    summary = embed(tmp_path / "o", path, "--skip-errors", "--id-column", "id")
    assert (summary.rows, summary.empty, summary.bad) == (3, 0, 2)
    told = [(each["line"], each["id"], each["reason"][:26]) for each in rows(tmp_path / "o", "_bad-*.jsonl")]
    assert told == [(2, 1, "column 'text' is not valid"), (4, 3, "column 'text' has 13,631,4")]


def test_a_bad_category_leaves_what_was_read_and_what_stands_beside(tmp_path: Path) -> None:
    """In a kept column, in one of several groups of rows; each row comes once, with its own types."""
    count, odd = 700, 555
    categories = unchecked([b"a", b"b", b"\xff"], pa.string())
    took = pa.array([*range(count)], pa.duration("ms"))
    numbers: list[int | None] = [number % 2 for number in range(count)]
    numbers[odd] = 2
    table = {"text": [f"t{number}" for number in range(count)], "note": by_number(numbers, categories), "took": took}
    pq.write_table(pa.table(table), tmp_path / "a.parquet", row_group_size=300)
    embed(tmp_path / "o", str(tmp_path / "a.parquet"), "--keep", "note,took", "--skip-errors")
    (bad,) = rows(tmp_path / "o", "_bad-*.jsonl")
    assert (bad["row"], bad["reason"]) == (odd, "column 'note' is not valid UTF-8 at byte 0")
    found = pq.read_table(tmp_path / "o")
    others = [number for number in range(count) if number != odd]
    assert found["row"].to_pylist() == others
    assert found["note"].to_pylist() == ["ab"[number % 2] for number in others]
    assert found["took"].to_pylist() == [datetime.timedelta(milliseconds=number) for number in others]


@FLAGS
@pytest.mark.parametrize("kind", NO_STRINGS)
def test_other_columns_are_refused_by_name(tmp_path: Path, kind: str, flags: tuple[str, ...]) -> None:
    """All of their rows would be bad, and nothing is begun."""
    path = stored(tmp_path / "a.parquet", text=NO_STRINGS[kind])
    with pytest.raises(Failed, match=rf"^--text-column: 'text' of .*a\.parquet holds {kind}.*, not strings$"):
        embed(tmp_path / "o", path, *flags)


LISTS = [["a"], [], None, ["b", None]]
KEPT = {
    "strings": pa.array(["a", None, "", "b"]),
    "large strings": pa.array(["a", None, "", "b"], pa.large_string()),
    "views": pa.array(["a", None, "", "b"], pa.string_view()),
    "views of bytes": pa.array([b"a", None, b"\xff", b"b"], pa.binary_view()),
    "nulls": pa.nulls(4),
    "categories": by_number([0, 1, None, 0], ["a", "b"]),
    "categories of numbers": by_number([0, 1, None, 0], pa.array([5, 7])),
    "lists": pa.array(LISTS),
    "lists of views": pa.array(LISTS, pa.list_(pa.string_view())),
    "views of lists": pa.array(LISTS, pa.list_view(pa.string())),
    "lists of two": pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
    "lists of categories": pa.ListArray.from_arrays([0, 1, 1, 3, 4], by_number([0, 1, None, 0], ["a", "b"])),
    "structs": pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}, {"a": 2, "b": []}]),
    "structs of nulls": pa.StructArray.from_arrays([pa.nulls(4)], ["a"]),
    "maps": pa.array([[("a", 1)], [], None, [("b", None)]], pa.map_(pa.string(), pa.int64())),
    "true or false in a byte": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None, 1], pa.int8())),
}


@pytest.mark.parametrize("note", KEPT.values(), ids=KEPT)
def test_kept_columns_of_every_kind_are_kept(tmp_path: Path, note: Any) -> None:
    """Their values, and their types but for the number of bytes of a category; beside vectors in numpy's format too."""
    path = stored(tmp_path / "a.parquet", text=["a", "b", "c", "d"], note=note)
    read = pq.read_table(path)["note"]
    found = kept(tmp_path, path)
    assert found.to_pylist() == read.to_pylist()
    assert str(found.type) == str(read.type).replace("indices=int8", "indices=int32")
    assert embed(tmp_path / "npy", path, "--keep", "note", "--format", "npy").rows == 4


@pytest.mark.parametrize("deep", [False, True])
def test_categories_of_many_files_have_room(tmp_path: Path, deep: bool) -> None:
    """Each file has so few that a byte counts them, which all together do not fit into; a second block has others."""
    files = []
    for file, count in enumerate((4096, 100, 100)):
        numbers: list[int | None] = [number % 100 for number in range(count)]
        note = by_number(numbers, [f"{file}-{number}" for number in range(100)])
        note = pa.StructArray.from_arrays([note], ["category"]) if deep else note
        files.append(stored(tmp_path / f"{file}.parquet", text=["a"] * count, note=note))
    found = kept(tmp_path, *files).to_pylist()
    assert len({str(each) for each in found}) == 300
    assert found[-1] == ({"category": "2-99"} if deep else "2-99")


def test_an_order_of_categories_is_not_claimed(tmp_path: Path) -> None:
    """A shard has them as its rows do, so that one would sort by whatever came first."""
    note = by_number([2, 1, 0, 2], STEPS, ordered=True)
    found = kept(tmp_path, stored(tmp_path / "a.parquet", text=["a", "b", "c", "d"], note=note))
    assert found.to_pylist() == ["high", "mid", "low", "high"]
    assert not found.type.ordered


def test_nulls_alone_take_no_type_from_a_column(tmp_path: Path) -> None:
    """One file of many often has none of its values; where types do differ, all becomes text."""
    numbers, nulls = (stored(tmp_path / f"{n}.parquet", text=["a"], note=note) for n, note in enumerate(([7], [None])))
    assert kept(tmp_path, numbers, nulls) == pa.chunked_array([pa.array([7, None])])
    strings = stored(tmp_path / "2.parquet", text=["a"], note=["b"])
    assert kept(tmp_path / "mixed", numbers, nulls, strings).to_pylist() == ["7", None, "b"]
