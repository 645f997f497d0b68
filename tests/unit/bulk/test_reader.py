"""Files -> rows: formats, types, places, what is bad and why, what is not read."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selvage.bulk import Failed
from selvage.bulk import reader as reader_module
from selvage.bulk.files import find_inputs
from selvage.bulk.reader import NUMBERS, Columns, Reader, RowPlan, check_inputs
from support.bulk_fakes import bad_rows, embed, rows

ALL = RowPlan(rows_per_shard=10)
COLUMNS = Columns(text="text", id="id", copied=("note",))
PLAIN = Columns(text="text", id="", copied=())
ROWS = [("a", "1", "x"), ("b, c", "2", ""), ('say "d"', "3", "y\nz"), ("", "4", "w"), ("é 你", "5", "v")]


def opened(*paths: Path, columns: Columns = COLUMNS, plan: RowPlan = ALL) -> Reader:
    files = find_inputs([str(path) for path in paths])
    return Reader(files, columns, check_inputs(files, columns), plan)


def read(*paths: Path, most: int = 4096, **options: Any) -> list[tuple[Any, ...]]:
    """Number, text and other columns of each row."""
    tables = opened(*paths, **options).tables(most)
    return [row for table in tables for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]


def written(folder: Path, name: str) -> Path:
    """`ROWS` in the format that a name tells."""
    path = folder / name
    texts, ids, notes = map(list, zip(*ROWS, strict=True))
    table = pa.table({"note": notes, "text": texts, "id": ids})
    if name.endswith(".parquet"):
        pq.write_table(table, path, row_group_size=2)
        return path
    if ".jsonl" in name:
        content = "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()
    else:
        sink = pa.BufferOutputStream()
        pyarrow.csv.write_csv(table, sink, pyarrow.csv.WriteOptions(delimiter="\t" if ".tsv" in name else ","))
        content = sink.getvalue().to_pybytes()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.csv.gz", "a.tsv", "a.parquet"])
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    """With what stands beside the texts, in tables of at most so many rows."""
    path = written(tmp_path, name)
    assert [len(table) for table in opened(path).tables(2)] == [2, 2, 1]
    assert read(path, most=2) == [(number, *row) for number, row in enumerate(ROWS)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_rows_that_nobody_wants_are_counted_only(tmp_path: Path, name: str) -> None:
    """By the shard they lie in; a second file goes on where the first ends, and tells its own places."""
    other = written(tmp_path, name).rename(tmp_path / f"b{Path(name).suffix}")
    plan = RowPlan(rows_per_shard=2, index=1, count=2, finished={3})
    reader = opened(written(tmp_path, name), other, plan=plan)
    (table,) = reader.tables(4096)
    assert table[NUMBERS].to_pylist() == [2, 3]
    assert (reader.total, reader.fraction_read) == (10, 1.0)
    assert reader.place_of(3) == (str(tmp_path / name), 4)
    assert reader.place_of(5) == (str(other), 1)


def test_a_line_a_text(tmp_path: Path) -> None:
    """Windows' line ends and byte order marks are no part of it; quotation marks and commas are."""
    path = tmp_path / "a.txt"
    path.write_bytes(b'\xef\xbb\xbfone\r\n\r\n two, \n"three')
    assert [text for _, text in read(path, columns=PLAIN)] == ["one", "", " two, ", '"three']
    with pytest.raises(Failed, match=r"--id-column: .* plain text"):
        opened(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.csv.gz", "header.csv", "a.txt", "a.parquet"])
def test_an_empty_file_has_no_rows(tmp_path: Path, name: str) -> None:
    """Alone, and before one that has some."""
    if name == "a.parquet":
        pq.write_table(pa.table({"text": pa.nulls(0)}), tmp_path / name)
    else:
        content = b"text" if name == "header.csv" else b""
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    (tmp_path / "b.jsonl").write_text('{"text": "one"}\n')
    assert read(tmp_path / name, columns=PLAIN) == []
    assert read(tmp_path / name, tmp_path / "b.jsonl", columns=PLAIN) == [(0, "one")]


def test_nulls_are_empty_texts(tmp_path: Path) -> None:
    """So is a column that a line of JSON leaves out; beside them they stay null."""
    (tmp_path / "a.jsonl").write_text('{"text": null, "id": 1, "note": "x"}\n{"id": 2}\n{"text": "one", "id": null}\n')
    summary = embed(tmp_path / "o", str(tmp_path / "a.jsonl"), "--id-column", "id", "--keep", "note")
    assert (summary.rows, summary.empty) == (1, 2)
    (row,) = rows(tmp_path / "o")
    assert (row["row"], row["id"], row["note"]) == (2, None, None)


TEXTS = pa.array(["one", "", None, "two", "  ", "one"])


@pytest.mark.parametrize(
    "texts",
    [TEXTS, TEXTS.cast(pa.large_string()), TEXTS.cast(pa.string_view()), TEXTS.dictionary_encode()],
    ids=lambda texts: str(texts.type),
)
def test_strings_are_texts_however_arrow_lays_them_out(tmp_path: Path, texts: Any) -> None:
    """Nulls, empty texts and white space alone are left out."""
    pq.write_table(pa.table({"text": texts, "note": texts}), tmp_path / "a.parquet", row_group_size=4)
    embed(tmp_path / "o", str(tmp_path / "a.parquet"), "--keep", "note")
    assert [(row["row"], row["note"]) for row in rows(tmp_path / "o")] == [(0, "one"), (3, "two"), (5, "one")]


@pytest.mark.parametrize(
    "texts",
    [pa.array([b"a"]), pa.array([1]).dictionary_encode(), pa.array([True]), pa.array([["a"]])],
    ids=lambda texts: str(texts.type),
)
def test_other_columns_are_refused_by_name(tmp_path: Path, texts: Any) -> None:
    """All of their rows would be bad, and nothing is begun."""
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    with pytest.raises(Failed, match=r"--text-column: 'text' of .*a\.parquet holds [a-z0-9<: >]+, not strings"):
        embed(tmp_path / "o", str(tmp_path / "a.parquet"))
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("ids", [["18446744073709551614", "1"], ["1.5", "9007199254740993"]])
def test_ids_that_would_be_rounded_are_refused(tmp_path: Path, ids: list[str]) -> None:
    """Two of them might become one."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"text": "a", "id": {number}}}\n' for number in ids))
    with pytest.raises(Failed, match=r"--id-column: 'id' of .* is read as double, which would round ids"):
        opened(path, columns=Columns(text="text", id="id", copied=()))


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": 5}\n', r"Column\(/text\) changed from string to number"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', "JSON parse error"),
        ("a.csv", b"text,id\na,1\nb\n", "Row #3: Expected 2 columns, got 1: b"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 1000, mtime=0)[:-20], "Truncated compressed stream"),
        ("a.parquet", b"no", "Parquet"),
    ],
)
def test_a_file_that_cannot_be_read_ends_the_command(tmp_path: Path, name: str, content: bytes, fault: str) -> None:
    """With its name; --skip-errors is for texts, not for what has no rows."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Failed, match=rf"{name}: cannot be read after its row 0: .*{fault}"):
        embed(tmp_path / "o", str(tmp_path / name), "--skip-errors")


def test_damage_in_the_middle_is_told_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was finished before stays finished."""
    monkeypatch.setattr(reader_module, "BLOCK_BYTES", 100)
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n' * 30 + '{"text": 5}\n')
    with pytest.raises(Failed, match=r"a\.jsonl: cannot be read after its row 25: .*from string to number"):
        embed(tmp_path / "o", str(tmp_path / "a.jsonl"), "--rows-per-shard", "10")


def test_bytes_that_are_no_utf_8_are_bad_rows(tmp_path: Path) -> None:
    """Of every format, with file and row; the others are embedded."""
    raw = pa.array([b"a", b"\xff", "é".encode()], pa.binary())
    strings = pa.StringArray.from_buffers(len(raw), raw.buffers()[1], raw.buffers()[2])
    pq.write_table(pa.table({"text": strings, "id": ["1", "2", "3"]}), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_bytes(b"id,text\n1,a\n2,b\xff\n3,\xc3\xa9\n")
    (tmp_path / "a.jsonl").write_bytes(
        b'{"id": "1", "text": "a"}\n{"id": "2", "text": "\xff"}\n{"id": "3", "text": "\xc3\xa9"}\n'
    )
    for name in ("a.parquet", "a.csv", "a.jsonl"):
        folder = tmp_path / f"of {name}"
        embed(folder, str(tmp_path / name), "--id-column", "id", "--skip-errors")
        assert [row["id"] for row in rows(folder)] == ["1", "3"]
        (bad,) = bad_rows(folder)
        reason = f"column 'text' is not valid UTF-8 at byte {int(name == 'a.csv')}"
        assert bad == {"row": 1, "file": str(tmp_path / name), "file_row": 2, "id": "2", "reason": reason}
        with pytest.raises(Failed, match=rf"{name}, row 2: {reason} \(--skip-errors"):
            embed(tmp_path / "p", str(tmp_path / name), "--restart")


def test_kept_columns_keep_their_types(tmp_path: Path) -> None:
    """Those of Parquet, whatever Python makes of them; of JSON as pyarrow reads them; of CSV they are strings."""
    table = pa.table(
        {
            "text": ["0", "1"],
            "id": pa.array([7, 8], pa.uint16()),
            "tags": [["a"], None],
            "when": pa.array([1, None], pa.timestamp("ns")),
            "kind": pa.array(["x", "y"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    embed(tmp_path / "p", str(tmp_path / "a.parquet"), "--id-column", "id", "--keep", "tags,when,kind")
    names = ["id", "tags", "when"]
    assert pq.read_table(tmp_path / "p").select(names).equals(table.select(names))
    assert pq.read_table(tmp_path / "p")["kind"].to_pylist() == ["x", "y"]
    (tmp_path / "a.jsonl").write_text('{"text": "0", "id": 7, "tags": ["\\u00e9"], "on": "2020-01-02"}\n')
    embed(tmp_path / "j", str(tmp_path / "a.jsonl"), "--id-column", "id", "--keep", "tags,on")
    assert [(row["id"], row["tags"], row["on"]) for row in rows(tmp_path / "j")] == [(7, ["é"], "2020-01-02")]
    (tmp_path / "a.csv").write_text("text,id\n0,007\n")
    embed(tmp_path / "c", str(tmp_path / "a.csv"), "--id-column", "id", "--keep", "text")
    assert [(row["id"], row["text"]) for row in rows(tmp_path / "c")] == [("007", "0")]


def test_files_have_one_type_for_a_column(tmp_path: Path) -> None:
    """Nulls alone fit any, whole numbers fit wider ones; what does not fit is refused by file and column."""
    for number, notes in enumerate((pa.nulls(1), pa.array([7], pa.int32()), pa.array([8]), pa.array(["b"]))):
        pq.write_table(pa.table({"text": ["a"], "note": notes}), tmp_path / f"{number}.parquet")
    files = [str(tmp_path / f"{number}.parquet") for number in range(4)]
    embed(tmp_path / "o", *files[:3], "--keep", "note")
    assert pq.read_table(tmp_path / "o")["note"].combine_chunks() == pa.array([None, 7, 8])
    with pytest.raises(
        Failed, match=r"--keep or --id-column: .*3\.parquet has other types than the files before: .*note"
    ):
        embed(tmp_path / "p", *files, "--keep", "note")


def test_a_type_that_cannot_be_copied_is_refused(tmp_path: Path) -> None:
    """By the column, before anything is begun."""
    table = pa.table({"text": ["a"], "note": pa.array([["a"]], pa.list_(pa.string_view()))})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(Failed, match=r"--keep: 'note' of .*a\.parquet is of a type that cannot be copied, list<"):
        embed(tmp_path / "o", str(tmp_path / "a.parquet"), "--keep", "note")
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(("column", "flag"), [("text", "--text-column"), ("id", "--id-column"), ("note", "--keep")])
def test_a_missing_column_is_told_at_once(tmp_path: Path, column: str, flag: str) -> None:
    """By the flag that names it, with those that are there."""
    names = [name for name in ("text", "id", "note") if name != column]
    (tmp_path / "a.csv").write_text(",".join(names) + "\n")
    with pytest.raises(Failed, match=rf"{flag}: .*a\.csv has no one column '{column}'; there are {', '.join(names)}"):
        opened(tmp_path / "a.csv")


def test_what_is_no_input_is_told(tmp_path: Path) -> None:
    """By the file; of a folder, names that readers of Parquet skip are left out."""
    (tmp_path / "a.bin").write_bytes(b"no")
    (tmp_path / "a.parquet.gz").write_bytes(b"no")
    with pytest.raises(Failed, match=r"INPUT: the name of .*a\.bin tells no format; it must end with .jsonl, "):
        find_inputs([str(tmp_path / "a.bin")])
    with pytest.raises(Failed, match=r"a\.parquet\.gz is zipped; Parquet is compressed inside"):
        find_inputs([str(tmp_path / "a.parquet.gz")])
    with pytest.raises(Failed, match="INPUT: there is no file 'nothing"):
        find_inputs(["nothing*.jsonl"])
    for name in ("_bad-000000.jsonl", ".hidden.jsonl", "b.csv", "a.jsonl"):
        (tmp_path / name).write_text("")
    (tmp_path / "a.parquet.gz").unlink()
    assert [file.path for file in find_inputs([str(tmp_path), f"{tmp_path}/*.csv"])] == [
        str(tmp_path / name) for name in ("a.jsonl", "b.csv")
    ]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_large_input_is_not_held(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's memory stays that of some rows, though a group of rows of Parquet has all 100 MB."""
    monkeypatch.setattr(reader_module, "BLOCK_BYTES", 256 * 1024)
    monkeypatch.setattr(reader_module, "TABLE_BYTES", 1024 * 1024)
    path, texts = tmp_path / name, ["x" * 5000] * 20_000
    if name == "a.jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    else:
        pq.write_table(pa.table({"text": texts}), path, compression="none", use_dictionary=False)
    del texts
    before, peak, letters = pa.total_allocated_bytes(), 0, 0
    for table in opened(path, columns=PLAIN).tables(4096):
        peak = max(peak, pa.total_allocated_bytes() - before)
        letters += sum(map(len, table["text"].to_pylist()))
    assert letters == 100_000_000
    assert peak < 25_000_000


@given(st.integers(1, 9), st.integers(1, 5), st.sets(st.integers(0, 8)), st.integers(0, 40), st.integers(0, 40))
def test_the_commands_of_a_plan_share_all_rows(size: int, count: int, finished: Any, start: int, stop: int) -> None:
    """Each row is wanted by one of them, unless its shard is finished."""
    plans = [RowPlan(rows_per_shard=size, index=index, count=count, finished=finished) for index in range(count)]
    wanted = [row for plan in plans for first, end in plan.ranges(start, stop) for row in range(first, end)]
    assert sorted(wanted) == [row for row in range(start, stop) if row // size not in finished]
