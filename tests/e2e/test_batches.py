"""`selvage.clusters` against real processes: the numbers and types of the client, in every data type."""

from typing import Any

import numpy as np
import pytest

from harness.stack import Stack
from selvage import Client
from selvage.clusters import BatchEmbedding

TEXTS = [f"w{i % 97} w{i * 7 % 90} " * (1 + i % 9) for i in range(150)]


@pytest.mark.parametrize(
    ("data_type", "dimensions"),
    [("float32", None), ("float16", 20), ("bfloat16", None), ("int8", 20), ("binary", None)],
)
def test_a_table_holds_what_the_client_gets(tiny: Stack, data_type: str, dimensions: int | None) -> None:
    """Values within what batches differ by, in columns of the types that were told before anything was asked."""
    asked: Any = {"output": ["dense", "multi_vector"], "data_type": data_type, "dimensions": dimensions}
    target = tiny.frontends[0].address
    with Client(target) as client:
        expected = client.embed(TEXTS, **asked)
    embedding = BatchEmbedding(target=target, message_texts=16, on_error="null", **asked)
    table = embedding.table([*TEXTS, ""])
    embedding.close()
    assert table.schema == embedding.schema
    dense = np.array(table["dense"].to_pylist()[:-1]).astype(expected.dense.dtype)
    assert table["dense"].type.list_size == dense.shape[1]
    alike(dense, expected.dense, data_type)
    for rows, theirs in zip(table["multi_vector"].to_pylist(), expected.multi_vector, strict=False):
        alike(np.array(rows).astype(theirs.dtype), theirs, data_type)
    if data_type == "int8":
        alike(np.array(table["dense_scales"].to_pylist()[:-1]), expected.dense_scales, "float32")
    assert table["tokens"].to_pylist()[:-1] == expected.token_counts.tolist()
    assert table["truncated"].to_pylist()[:-1] == expected.truncated.tolist()
    assert [name for name in table.column_names if table[name][-1].as_py() is not None] == ["reason"]


def alike(found: Any, expected: Any, data_type: str) -> None:
    """What is rounded may fall to the other side, rarely."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape) or data_type == "float32"
    off = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    if data_type in ("int8", "binary"):
        assert (off > 0).mean() < 0.01
    else:
        assert off.max() < {"float32": 1e-6, "float16": 1e-3, "bfloat16": 1e-2}[data_type]
