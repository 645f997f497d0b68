"""Files -> rows: formats, places, what is bad and why, what is not read."""

import csv
import gzip
import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selvage.bulk import input_reader, parquet_input
from selvage.bulk.failures import Failed
from selvage.bulk.files import find_inputs
from selvage.bulk.input_reader import InputReader, check_inputs
from selvage.bulk.plan import RowPlan
from selvage.bulk.rows import BadRow, Columns, Row

ALL = RowPlan(rows_per_shard=10)
COLUMNS = Columns(text="text", id="id", copied=("note",))
ROWS = [("a", "1", "x"), ("b, c", "2", ""), ('say "d"', "3", "y\nz"), ("", "4", "w"), ("é 你", "5", "v")]


def read(path: Path, columns: Columns = COLUMNS, plan: RowPlan = ALL, format_: str = "") -> list[Row | BadRow]:
    return list(InputReader(find_inputs([str(path)], format_), columns, plan))


def written(folder: Path, name: str) -> Path:
    """`ROWS` in the format that a name tells."""
    path = folder / name
    if ".jsonl" in name:
        text = "".join(json.dumps(dict(zip(("text", "id", "note"), row, strict=True))) + "\n" for row in ROWS)
    elif name == "a.parquet":
        texts, ids, notes = zip(*ROWS, strict=True)
        pq.write_table(pa.table({"note": notes, "text": texts, "id": ids}), path, row_group_size=2)
        return path
    else:
        with path.open("w", newline="") as stream:
            writer = csv.writer(stream, delimiter="\t" if ".tsv" in name else ",")
            writer.writerows([("note", "text", "id"), *((note, text, id_) for text, id_, note in ROWS)])
        text = path.read_text()
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.csv.gz", "a.tsv", "a.parquet"])
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    """With what stands beside the texts, and a place."""
    found = read(written(tmp_path, name))
    assert [(row.text, *row.extra) for row in found if isinstance(row, Row)] == ROWS
    assert [row.number for row in found] == [0, 1, 2, 3, 4]
    assert [row.line for row in found][:3] == ([2, 3, 4] if "sv" in name else [1, 2, 3])


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_rows_that_nobody_wants_are_counted_only(tmp_path: Path, name: str) -> None:
    """By the shard they lie in; a second file goes on where the first ends."""
    path = written(tmp_path, name)
    other = path.rename(path.with_name(f"b{path.suffix}"))
    written(tmp_path, name)
    files = find_inputs([str(tmp_path / name), str(other)])
    reader = InputReader(files, COLUMNS, RowPlan(rows_per_shard=2, index=1, count=2, finished={3}))
    assert [(row.number, row.text) for row in reader if isinstance(row, Row)] == [(2, 'say "d"'), (3, "")]
    assert (reader.total, reader.position) == (10, reader.size)


def test_a_line_a_text(tmp_path: Path) -> None:
    """Windows' line ends and byte order marks are no part of it."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\r\n two \nthree")
    found = read(path, Columns(text="text", id="", copied=()))
    assert [row.text for row in found if isinstance(row, Row)] == ["one", "", " two ", "three"]
    with pytest.raises(Failed, match=r"--id-column: .* plain text"):
        check_inputs(find_inputs([str(path)]), COLUMNS)


def test_bad_rows_of_jsonl_have_places_and_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are read."""
    monkeypatch.setattr(input_reader, "LINE_BYTES", 300)
    good = b'{"text": "a", "id": 7, "note": null}'
    lines = [
        good,
        b"",
        b'{"text": 5, "id": 8, "note": ""}',
        b'{"text": "b", "id": 9}',
        b"[1]",
        b"{",
        b'{"text": "\xff", "id": 10, "note": ""}',
        b'{"text": "\\ud800", "id": 11, "note": ""}',
        b'{"text": "%s"}' % (b"x" * 1000),
        b'{"text": null, "id": 12, "note": [1]}',
    ]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([*lines, good]))
    found = read(path)
    told = [(row.line, row.reason, row.id) for row in found if isinstance(row, BadRow)]
    assert told == [
        (3, "column 'text' is of type int, not a string", 8),
        (4, "it has no 'note'; there are id, text", 9),
        (5, "it is of type list, not an object", None),
        (6, told[3][1], None),
        (7, "the line is not valid UTF-8 at byte 10", None),
        (8, "column 'text' has half of a character at 0", 11),
        (9, "the line is longer than 300 bytes", None),
    ]
    assert told[3][1].startswith("it is not JSON")
    rest = [(row.number, row.line, row.text, row.extra) for row in found if isinstance(row, Row)]
    assert rest == [(0, 1, "a", (7, None)), (8, 10, "", (12, [1])), (9, 11, "a", (7, None))]


def test_bad_rows_of_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong counts and bytes are of one row; a quotation mark that stays open ends the file."""
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,id,note\n"two\nlines",1,x\nshort,2\n\nb\xe9d,3,y\ngood,4,z\n')
    found = read(path)
    assert [str(row).partition("a.csv")[2] for row in found if isinstance(row, BadRow)] == [
        ":4: it has 2 columns, the header has 3",
        ":6: column 'text' is not valid UTF-8 at 1",
    ]
    assert [row.text for row in found if isinstance(row, Row)] == ["two\nlines", "good"]
    monkeypatch.setattr(input_reader, "LINE_BYTES", 100)
    path.write_text('text,id,note\n"open,1,x\n' + "more,2,y\n" * 50)
    with pytest.raises(Failed, match=r"a\.csv:\d+: field larger .*quotation mark"):
        read(path)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('text,id,note\na,1,x\nb,"2,y\nc,3,z\n', 3),
        ('text,id,note\na,1,x\n"b,2,y', 3),
        ('text,"id,note\na,1,x\n', 1),
    ],
    ids=["id", "last line", "header"],
)
@pytest.mark.parametrize("wanted", [True, False])
def test_a_quotation_mark_that_stays_open_swallows_nothing(tmp_path: Path, text: str, line: int, wanted: bool) -> None:
    """It would be all rows up to the end of the file."""
    path = tmp_path / "a.csv"
    path.write_text(text)
    plan = ALL if wanted else RowPlan(rows_per_shard=10, index=1, count=2)
    with pytest.raises(Failed, match=rf"a\.csv:{line}: a quotation mark is left open"):
        read(path, plan=plan)


@pytest.mark.parametrize("end", ["", "\n", "\n\n", '\n"c, ""d""\n",3,z'])
def test_a_csv_may_end_in_any_way(tmp_path: Path, end: str) -> None:
    """With or without a line's end, with empty lines, with a quoted record."""
    path = tmp_path / "a.csv"
    path.write_text("text,id,note\na,1,x\nb,2,y" + end)
    texts = [row.text for row in read(path) if isinstance(row, Row)]
    assert texts == ["a", "b", *(['c, "d"\n'] if "c" in end else [])]


def test_bad_rows_of_parquet(tmp_path: Path) -> None:
    """Bytes that are no UTF-8, and strings of millions of letters; nulls are empty texts."""
    raw = pa.array([b"a", b"\xff", None, b"x" * (13 << 20)], pa.binary())
    texts = pa.StringArray.from_buffers(len(raw), raw.buffers()[1], raw.buffers()[2], raw.buffers()[0])
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": texts, "id": [1, 2, 3, 4], "note": ["", "", "", ""]}), path)
    first, second, third, fourth = read(path)
    assert isinstance(first, Row)
    assert str(second).endswith("a.parquet:2: column 'text' is not valid UTF-8 at byte 0")
    assert isinstance(third, Row)
    assert third.text == ""
    assert isinstance(fourth, BadRow)
    assert (fourth.id, fourth.reason) == (4, "column 'text' has 13,631,488 letters; 3,145,728 can be sent")


def test_damaged_files_are_named(tmp_path: Path) -> None:
    """Wherever a byte is wrong: in what is zipped, or between the pages of Parquet."""
    texts = {"text": [str(number) * 40 for number in range(3000)]}
    lines = "".join(json.dumps({"text": each}) + "\n" for each in texts["text"]).encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    pq.write_table(pa.table(texts), tmp_path / "a.parquet", row_group_size=500, compression="zstd")
    plain, told = Columns(text="text", id="", copied=()), []
    for name in ("a.jsonl.gz", "a.parquet"):
        whole = (tmp_path / name).read_bytes()
        for place in range(20, len(whole) - 20, len(whole) // 40):
            broken = tmp_path / f"broken-{name}"
            broken.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
            try:
                read(broken, plain)
            except Failed as failed:
                told.append(str(failed))
    assert len(told) > 20
    assert all("broken-a." in each for each in told)
    assert {"cannot be read" in each or "is no Parquet" in each for each in told} == {True}


@pytest.mark.parametrize(("column", "flag"), [("text", "--text-column"), ("id", "--id-column"), ("note", "--keep")])
@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_missing_column_is_told_at_once(tmp_path: Path, name: str, column: str, flag: str) -> None:
    """By the flag that names it, with those that are there."""
    path = tmp_path / name
    there = [each for each in ("text", "id", "note") if each != column]
    if name == "a.csv":
        path.write_text(",".join(there) + "\n")
    else:
        pq.write_table(pa.table({each: ["a"] for each in there}), path)
    with pytest.raises(Failed, match=rf"{flag}: .*a\.\w+ has no one column '{column}'; there are {', '.join(there)}"):
        check_inputs(find_inputs([str(path)]), COLUMNS)


def test_what_is_no_input_is_told(tmp_path: Path) -> None:
    """By the file."""
    (tmp_path / "a.parquet").write_bytes(b"no")
    (tmp_path / "a.bin").write_bytes(b"no")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n' * 1000)[:-20])
    pq.write_table(pa.table({"text": [1]}), tmp_path / "numbers.parquet")
    plain = Columns(text="text", id="", copied=())
    with pytest.raises(Failed, match=r"INPUT: .*a\.parquet is no Parquet"):
        check_inputs(find_inputs([str(tmp_path / "a.parquet")]), plain)
    with pytest.raises(Failed, match=r"--text-column: 'text' of .*numbers\.parquet holds int64"):
        check_inputs(find_inputs([str(tmp_path / "numbers.parquet")]), plain)
    with pytest.raises(Failed, match=r"INPUT: the name of .*a\.bin tells no format; give --input-format"):
        find_inputs([str(tmp_path / "a.bin")])
    with pytest.raises(Failed, match="INPUT: there is no file 'nothing"):
        find_inputs(["nothing*.jsonl"])
    with pytest.raises(Failed, match=r"cut\.jsonl\.gz: cannot be read: Compressed file ended"):
        read(tmp_path / "cut.jsonl.gz", plain)
    for aside in ("_bad-000000.jsonl", ".hidden.jsonl"):
        (tmp_path / aside).write_text("")
    assert [each.path for each in find_inputs([str(tmp_path), f"{tmp_path}/*.parquet"])] == [
        str(tmp_path / name) for name in ("a.parquet", "cut.jsonl.gz", "numbers.parquet")
    ]


def test_parquet_without_pyarrow_names_what_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other format works without it."""
    path = written(tmp_path, "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Failed, match=r"a\.parquet needs pyarrow \(the extra bulk\): pip install pyarrow"):
        check_inputs(find_inputs([str(path)]), COLUMNS)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_large_input_is_not_held(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's memory stays that of some rows; a group of rows of Parquet may be far larger."""
    path, texts = tmp_path / name, ["x" * 5000] * 4000
    if name == "a.jsonl":
        path.write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))
    else:
        monkeypatch.setattr(parquet_input, "ROWS", 16)
        pq.write_table(pa.table({"text": texts}), path, compression="none", use_dictionary=False)
    tracemalloc.start()
    try:
        reader = InputReader(find_inputs([str(path)]), Columns(text="text", id="", copied=()), ALL)
        assert sum(len(row.text) for row in reader if isinstance(row, Row)) == 20_000_000
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


@given(st.integers(1, 9), st.integers(1, 5), st.sets(st.integers(0, 8)), st.integers(0, 40), st.integers(0, 40))
def test_the_commands_of_a_plan_share_all_rows(size: int, count: int, finished: Any, start: int, stop: int) -> None:
    """Each row is wanted by one of them, unless its shard is finished; whole ranges are judged as their rows are."""
    plans = [RowPlan(rows_per_shard=size, index=index, count=count, finished=finished) for index in range(count)]
    for number in range(40):
        assert sum(plan.wants(number) for plan in plans) == (number // size not in finished)
    for plan in plans:
        assert plan.wants_any(start, stop) == any(plan.wants(number) for number in range(start, stop))
