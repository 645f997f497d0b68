"""Shards as Parquet and as npy: every kind and type of vector comes back as the client gives it."""

import json
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from selvage.bulk.failures import Failed
from selvage.v1 import embedding_pb2, vectors_pb2
from support.bulk_fakes import FakeService, embed, jsonl, rows

COUNT = 9
RNG = np.random.default_rng(1)
DENSE = {
    "float32": RNG.standard_normal((COUNT, 3)).astype(np.float32),
    "float16": RNG.standard_normal((COUNT, 3)).astype(np.float16),
    "bfloat16": (RNG.integers(0, 2**16, (COUNT, 3)).astype("<u4") << 16).view("<f4"),
    "int8": RNG.integers(-127, 127, (COUNT, 3)).astype(np.int8),
    "binary": RNG.integers(0, 255, (COUNT, 1)).astype(np.uint8),
}
LENGTHS = [0, 2, 3, 1, 0, 4, 1, 1, 2]
STARTS = np.cumsum([0, *LENGTHS])
SPARSE_IDS, SPARSE_WEIGHTS = RNG.integers(0, 99, sum(LENGTHS)), RNG.random(sum(LENGTHS)).astype(np.float32)
MULTI = RNG.integers(-127, 127, (sum(LENGTHS), 3)).astype(np.int8)
SCALES = RNG.random(sum(LENGTHS)).astype(np.float32)


class Scripted(FakeService):
    """Text i has row i of the arrays above."""

    def __init__(self) -> None:
        super().__init__()
        self.script = self._reply

    def _reply(self, batch: Any, _: int) -> embedding_pb2.EmbedStreamResponse:
        request, reply = batch.request, embedding_pb2.EmbedStreamResponse(id=batch.id)
        places = [int(each) for each in request.texts]
        entries = [entry for each in places for entry in range(STARTS[each], STARTS[each + 1])]
        name = vectors_pb2.DataType.Name(request.data_type).removeprefix("DATA_TYPE_").lower()
        response = reply.response
        response.usage.token_counts.extend(places)
        response.usage.truncated.extend(each % 2 == 1 for each in places)
        if 1 in request.outputs:
            found = DENSE[name][places]
            data = (found.view("<u4") >> 16).astype("<u2") if name == "bfloat16" else found
            response.dense.data_type, response.dense.dimensions = request.data_type, 3
            response.dense.data = data.tobytes()
            response.dense.scales = SCALES[places].tobytes() if name == "int8" else b""
        if 2 in request.outputs:
            response.sparse.lengths.extend(LENGTHS[each] for each in places)
            response.sparse.indices.extend(SPARSE_IDS[entries].tolist())
            response.sparse.values.extend(SPARSE_WEIGHTS[entries].tolist())
        if 3 in request.outputs:
            response.multi_vector.lengths.extend(LENGTHS[each] for each in places)
            response.multi_vector.data_type, response.multi_vector.dimensions = request.data_type, 3
            response.multi_vector.data = MULTI[entries].tobytes()
            response.multi_vector.scales = SCALES[entries].tobytes()
        return reply


def source(folder: Path) -> str:
    return jsonl(folder / "a.jsonl", [str(each) for each in range(COUNT)])


@pytest.mark.parametrize("name", DENSE)
def test_dense_rows_of_every_type(tmp_path: Path, name: str) -> None:
    """In both formats; int8 with its scales; in the order of the input, whatever was sent first."""
    flags = (source(tmp_path), "--data-type", name, "--batch-size", "2", "--rows-per-shard", "6", "--id-column", "id")
    embed(tmp_path / "p", *flags, services=[Scripted()])
    embed(tmp_path / "n", *flags, "--format", "npy", services=[Scripted()])
    table = pq.read_table(tmp_path / "p")
    dense = np.concatenate([np.load(path) for path in sorted((tmp_path / "n").glob("*.dense.npy"))])
    stored = np.array(table["dense"].to_pylist(), dtype=DENSE[name].dtype)
    assert np.array_equal(stored, DENSE[name], equal_nan=True)
    assert np.array_equal(dense, DENSE[name], equal_nan=True)
    assert dense.dtype == DENSE[name].dtype == table["dense"].type.value_type.to_pandas_dtype()
    assert table["id"].to_pylist() == [f"id-{i}" for i in range(COUNT)] == [row["id"] for row in rows(tmp_path / "n")]
    assert table["row"].to_pylist() == table["tokens"].to_pylist() == [*range(COUNT)]
    assert table["truncated"].to_pylist() == [row["truncated"] for row in rows(tmp_path / "n")]
    assert ("dense_scales" in table.column_names) == (name == "int8") == any((tmp_path / "n").glob("*dense_scales*"))
    if name == "int8":
        assert np.array_equal(table["dense_scales"], SCALES[:COUNT])
        assert np.array_equal(np.load(tmp_path / "n" / "part-000001.dense_scales.npy"), SCALES[6:COUNT])


def test_all_outputs_of_one_pass(tmp_path: Path) -> None:
    """Texts with no entries at all among them, blocks that are shorter than a shard."""
    flags = (source(tmp_path), "--outputs", "dense,sparse,multi-vector", "--data-type", "int8", "--batch-size", "4")
    embed(tmp_path / "p", *flags, services=[Scripted()])
    embed(tmp_path / "n", *flags, "--format", "npy", services=[Scripted()])
    table = pq.read_table(tmp_path / "p")
    arrays = {path.name.split(".")[1]: np.load(path) for path in (tmp_path / "n").glob("*.npy")}
    assert np.array_equal(arrays["sparse_offsets"], STARTS)
    assert np.array_equal(arrays["multi_vector_offsets"], STARTS)
    for column, entries in (
        ("sparse_ids", SPARSE_IDS),
        ("sparse_weights", SPARSE_WEIGHTS),
        ("multi_vector", MULTI),
        ("multi_vector_scales", SCALES),
    ):
        assert np.array_equal(arrays[column], entries)
        assert [len(each) for each in table[column].to_pylist()] == LENGTHS
        assert np.array_equal([each for row in table[column].to_pylist() for each in row], entries)
    assert arrays["multi_vector"].dtype == np.int8


def test_a_shard_of_many_blocks_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers and offsets are those of the whole."""
    monkeypatch.setattr("selvage.bulk.options.BLOCK_ROWS", {"dense": 2, "sparse": 2, "multi_vector": 2})
    flags = (source(tmp_path), "--outputs", "dense,multi-vector", "--data-type", "int8")
    embed(tmp_path / "p", *flags, services=[Scripted()])
    embed(tmp_path / "n", *flags, "--format", "npy", services=[Scripted()])
    assert pq.ParquetFile(tmp_path / "p" / "part-000000.parquet").num_row_groups == 5
    assert np.array_equal(np.load(tmp_path / "n" / "part-000000.multi_vector_offsets.npy"), STARTS)
    assert np.array_equal(np.load(tmp_path / "n" / "part-000000.dense.npy", mmap_mode="r"), DENSE["int8"])


def test_columns_keep_the_types_of_parquet(tmp_path: Path) -> None:
    """Of text formats they are strings, what is no string as JSON writes it."""
    table = pa.table(
        {
            "text": ["0", "1"],
            "id": pa.array([7, 8], pa.uint16()),
            "tags": [["a"], None],
            "when": pa.array([1, None], pa.timestamp("ms")),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    flags = ("--id-column", "id", "--keep", "tags,when")
    embed(tmp_path / "p", str(tmp_path / "a.parquet"), *flags)
    found = pq.read_table(tmp_path / "p")
    assert found.select(["id", "tags", "when"]).equals(table.select(["id", "tags", "when"]))
    (tmp_path / "a.jsonl").write_text('{"text": "0", "id": 7, "tags": ["\u00e9"], "when": null}\n')
    embed(tmp_path / "j", str(tmp_path / "a.jsonl"), *flags)
    assert pq.read_table(tmp_path / "j").select(["id", "tags", "when"]).to_pylist() == [
        {"id": "7", "tags": '["\u00e9"]', "when": None}
    ]
    embed(tmp_path / "n", str(tmp_path / "a.jsonl"), *flags, "--format", "npy")
    assert rows(tmp_path / "n") == [
        {"row": 0, "id": 7, "tags": ["\u00e9"], "when": None, "tokens": 1, "truncated": False}
    ]


def test_a_full_disk_is_told_and_what_is_finished_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing half done stays; the same command goes on."""
    path = jsonl(tmp_path / "a.jsonl", [f"text {i}" for i in range(30)])
    flags = (path, "--rows-per-shard", "10", "--format", "npy")
    folder, full = tmp_path / "n", OSError(28, "No space left on device")
    monkeypatch.setattr("os.fsync", _after(8, full))
    with pytest.raises(Failed, match=r"--output: .*/n cannot be written: No space left on device. 1 finished shards"):
        embed(folder, *flags)
    monkeypatch.undo()
    there = [path.name for path in folder.iterdir() if "lock" not in path.name]
    assert sorted(there) == ["_manifest.json", "part-000000.dense.npy", "part-000000.rows.jsonl"]
    assert embed(folder, *flags).texts == 20
    assert [json.loads(each)["row"] for each in _lines(folder)] == [*range(30)]


def _lines(folder: Path) -> list[str]:
    return [line for path in sorted(folder.glob("*.rows.jsonl")) for line in path.read_text().splitlines()]


def _after(count: int, error: Exception) -> Any:
    left = [count]

    def fsync(_: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise error

    return fsync


def test_half_a_character_deep_in_a_kept_value_is_kept(tmp_path: Path) -> None:
    """As JSON writes it: UTF-8 has no bytes for it, and the row has a vector all the same."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "1", "meta": {"x": "\\ud800", "é": [1]}}\n{"text": "2", "meta": {"é": 2}}\n')
    embed(tmp_path / "o", str(path), "--keep", "meta", services=[Scripted()])
    kept = pq.read_table(tmp_path / "o")["meta"].to_pylist()
    assert kept == ['{"x": "\\ud800", "\\u00e9": [1]}', '{"é": 2}']


TIMES = pa.array([1, 10**18, None], pa.timestamp("ns"))
"""Python has no nanoseconds."""


def test_times_finer_than_pythons_are_kept(tmp_path: Path) -> None:
    """With their type where all files share it, else as text."""
    table = pa.table({"text": ["1", "2", "3"], "at": TIMES})
    pq.write_table(table, tmp_path / "a.parquet")
    embed(tmp_path / "typed", str(tmp_path / "a.parquet"), "--keep", "at", services=[Scripted()])
    assert pq.read_table(tmp_path / "typed")["at"].combine_chunks() == TIMES
    (tmp_path / "b.jsonl").write_text('{"text": "4", "at": "later"}\n')
    both = (str(tmp_path / "a.parquet"), str(tmp_path / "b.jsonl"), "--keep", "at")
    embed(tmp_path / "text", *both, services=[Scripted()])
    told = ["1970-01-01 00:00:00.000000001", "2001-09-09 01:46:40", None, "later"]
    found = pq.read_table(tmp_path / "text")["at"].to_pylist()
    assert [each and each.removesuffix(".000000000") for each in found] == told
    embed(tmp_path / "npy", *both, "--format", "npy", services=[Scripted()])
    assert [row["at"] and row["at"].removesuffix(".000000000") for row in rows(tmp_path / "npy")] == told


def test_columns_whose_types_differ_between_files_become_text(tmp_path: Path) -> None:
    """Dates and decimals too, for which JSON has no form."""
    first = pa.table(
        {"text": ["1"], "a": [date(2020, 1, 2)], "b": [Decimal("1.50")], "c": [[1, 2]], "d": [b"\xff\x00"]}
    )
    pq.write_table(first, tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": ["2"], "a": ["x"], "b": [3], "c": ["y"], "d": ["z"]}), tmp_path / "b.parquet")
    files = (str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet"))
    embed(tmp_path / "o", *files, "--keep", "a,b,c,d", services=[Scripted()])
    found = pq.read_table(tmp_path / "o").select(["a", "b", "c", "d"]).to_pylist()
    assert found == [
        {"a": "2020-01-02", "b": "1.50", "c": "[1, 2]", "d": "/wA="},
        {"a": "x", "b": "3", "c": "y", "d": "z"},
    ]


def test_a_value_that_nobody_can_read_is_of_its_row_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time inside a list has no text; its row is listed with the reason."""
    monkeypatch.setitem(sys.modules, "pandas", None)  # which has nanoseconds
    nested = pa.array([[1000], [1], None], pa.list_(pa.timestamp("ns")))
    pq.write_table(pa.table({"text": ["1", "2", "3"], "at": nested}), tmp_path / "a.parquet")
    flags = (str(tmp_path / "a.parquet"), "--keep", "at", "--skip-errors")
    assert embed(tmp_path / "o", *flags, services=[Scripted()]).rows == 2
    (bad,) = rows(tmp_path / "o", "_bad-*.jsonl")
    assert bad["row"] == 1
    assert bad["reason"].startswith("column 'at' cannot be read: Nanosecond resolution")
