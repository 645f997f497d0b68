"""Shards as Parquet: every kind of vector comes back as the client gives it."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from selvage.bulk import Failed
from selvage.results import Embeddings
from support.bulk_fakes import FakeClient, embed, jsonl, rows

COUNT = 9
RNG = np.random.default_rng(1)
DENSE = RNG.integers(-127, 127, (COUNT, 3)).astype(np.int8)
LENGTHS = [0, 2, 3, 1, 0, 4, 1, 1, 2]
STARTS = np.cumsum([0, *LENGTHS])
SPARSE_IDS, SPARSE_WEIGHTS = [*range(sum(LENGTHS))], RNG.random(sum(LENGTHS)).astype(np.float32)
MULTI = RNG.integers(-127, 127, (sum(LENGTHS), 3)).astype(np.int8)
SCALES = RNG.random(sum(LENGTHS)).astype(np.float32)


class Scripted(FakeClient):
    """Text i has row i of the arrays above."""

    def embed(self, texts: list[str], **options: Any) -> Embeddings:
        places = [int(text) for text in texts]
        spans = [slice(STARTS[place], STARTS[place + 1]) for place in places]
        pairs = [dict(zip(SPARSE_IDS[span], SPARSE_WEIGHTS[span].tolist(), strict=True)) for span in spans]
        return Embeddings(
            model="fake",
            token_counts=np.array(places, dtype=np.int32),
            truncated=np.array([place % 2 == 1 for place in places]),
            dense=DENSE[places],
            dense_scales=SCALES[places],
            sparse=pairs,
            multi_vector=[MULTI[span] for span in spans],
            multi_vector_scales=[SCALES[span] for span in spans],
        )


def test_all_outputs_of_one_pass(tmp_path: Path) -> None:
    """Texts with no entries at all among them; each table of rows is a group."""
    source = jsonl(tmp_path / "a.jsonl", [str(number) for number in range(COUNT)])
    flags = (source, "--outputs", "dense,sparse,multi-vector", "--data-type", "int8", "--batch-size", "4")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("selvage.bulk.job.TABLE_ROWS", {"dense": 2, "sparse": 2, "multi_vector": 2})
        embed(tmp_path / "o", *flags, clients=[Scripted()])
    table = pq.read_table(tmp_path / "o")
    assert np.array_equal(np.stack(table["dense"].to_numpy()), DENSE)
    assert np.array_equal(table["dense_scales"], SCALES[:COUNT])
    assert table["row"].to_pylist() == table["tokens"].to_pylist() == [*range(COUNT)]
    assert table["truncated"].to_pylist() == [i % 2 == 1 for i in range(COUNT)]
    for column, entries in (
        ("sparse_ids", SPARSE_IDS),
        ("sparse_weights", SPARSE_WEIGHTS),
        ("multi_vector", MULTI),
        ("multi_vector_scales", SCALES),
    ):
        assert [len(entry) for entry in table[column].to_pylist()] == LENGTHS
        assert np.array_equal([entry for row in table[column].to_pylist() for entry in row], entries)
    assert pq.ParquetFile(tmp_path / "o" / "part-000000.parquet").num_row_groups == 5


def test_a_full_disk_is_told_and_what_is_finished_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing half done stays; the same command goes on."""
    flags = (jsonl(tmp_path / "a.jsonl", [f"text {i}" for i in range(30)]), "--rows-per-shard", "10")
    folder, left = tmp_path / "o", [6]

    def fsync(_: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fsync)
    with pytest.raises(Failed, match=r"--output: .*/o cannot be written: No space left on device. 1 finished shards"):
        embed(folder, *flags)
    monkeypatch.undo()
    there = [path.name for path in folder.iterdir() if "lock" not in path.name]
    assert sorted(there) == ["_manifest.json", "part-000000.parquet"]
    assert embed(folder, *flags).texts == 20
    assert [row["row"] for row in rows(folder)] == [*range(30)]
