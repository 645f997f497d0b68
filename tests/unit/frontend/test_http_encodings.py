"""Vectors over HTTP as numbers and base64, in every data type that vLLM has beside fp8."""

import base64
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from asgi import HttpApi, Told, Wide, Worker

from frontend_service.api.http.app import SENT_AT_ONCE
from frontend_service.api.http.routes import with_base64, with_list
from frontend_service.services.pipeline import ServedModel
from shared.jobs import Encode, Job, JobResult, Rows
from shared.vectors import OutputKind

TEXTS = ["a", "b c"]
ROWS = np.repeat(np.array([3.1, 4.1], dtype=np.float32)[:, None], 8, axis=1)
TOKENS = np.linspace(-1, 1, 7 * 8, dtype=np.float32).reshape(7, 8)


class Late(Worker):
    """Token vectors of both texts, where a request asks for them."""

    async def run(self, model: ServedModel, job: Job) -> JobResult:
        result = await super().run(model, job)
        assert isinstance(job.work, Encode)
        if OutputKind.MULTI_VECTOR not in job.work.outputs:
            return result
        return replace(result, dense=None, tokens=Rows(dimensions=8, data=TOKENS.tobytes()), row_lengths=(3, 4))


def numbers(raw: bytes, dtype: str) -> Any:
    """float32, by numpy's own reading of the bytes; bfloat16 is the upper half of float32."""
    if dtype == "bfloat16":
        return (np.frombuffer(raw, dtype="<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(raw, dtype={"float32": "<f4", "float16": "<f2"}[dtype]).astype(np.float32)


async def ask(path: str, **fields: object) -> Told:
    told = await HttpApi(Late()).ask(path, {"input": TEXTS} | fields)
    assert told.status == 200, told.body
    return told


@pytest.mark.parametrize(("dtype", "closeness"), [("float32", 0.0), ("float16", 1e-3), ("bfloat16", 8e-3)])
@pytest.mark.parametrize(("path", "field"), [("/v1/embeddings", "embedding"), ("/pooling", "data")])
async def test_base64_in_every_type(path: str, field: str, dtype: str, closeness: float) -> None:
    data = (await ask(path, encoding_format="base64", embed_dtype=dtype)).json["data"]
    for row, expected in zip(data, ROWS, strict=True):
        assert np.allclose(numbers(base64.b64decode(row[field]), dtype), expected, rtol=closeness, atol=0)


@pytest.mark.parametrize(("path", "field"), [("/pooling", "data"), ("/v1/multi-vector", "embeddings")])
async def test_token_vectors_as_base64(path: str, field: str) -> None:
    task = {"task": "token_embed"} if path == "/pooling" else {}
    told = await ask(path, encoding_format="base64", **task)
    rows = [base64.b64decode(entry[field]) for entry in told.json["data"]]
    assert [len(row) for row in rows] == [3 * 8 * 4, 4 * 8 * 4]
    assert b"".join(rows) == TOKENS.tobytes()


async def test_megabytes_are_sent_in_parts() -> None:
    """A socket that is full would have all the rest copied."""
    told = await HttpApi(Wide()).ask("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"})
    rows = [np.frombuffer(base64.b64decode(row["embedding"]), dtype="<f4") for row in told.json["data"]]
    assert (np.concatenate(rows) == np.arange(2 * 128 * 1024)).all()
    assert max(told.parts) == SENT_AT_ONCE
    assert told.parts[-1] == 0
    assert sum(told.parts) == int(told.headers["content-length"]) > 4 * SENT_AT_ONCE


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_list_that_is_put_together_in_parts_is_the_same_json(count: int) -> None:
    fields = {"id": 'a "quoted" \u00e9', "usage": {"total_tokens": 3}}
    data = [np.arange(number, dtype=np.uint8) for number in range(count)]
    written = with_list(fields, "data", [with_base64({"index": 1}, "embedding", array) for array in data])
    told = [{"index": 1, "embedding": base64.b64encode(array.tobytes()).decode()} for array in data]
    assert json.loads(written) == fields | {"data": told}


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"encoding_format": "base64", "embedding_type": "float"}, str),
        ({"encoding_format": "float", "embedding_type": "base64"}, str),
        ({"embedding_type": "base64"}, str),
        ({"embedding_type": "float"}, list),
        ({"encoding_format": "base64", "embedding_type": None}, str),
    ],
)
async def test_base64_is_what_either_field_asks_for(fields: dict[str, object], kind: type) -> None:
    """NVIDIA's `embedding_type` is float beside any format; openai's client sends base64 beside Jina's."""
    told = await ask("/v1/embeddings", **fields)
    assert isinstance(told.json["data"][0]["embedding"], kind)
