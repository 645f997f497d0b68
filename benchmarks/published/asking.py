"""Requests of a workload over HTTP as both servers take them, and the arrays in their answers. Both ways side by side.

Embeddings are asked for in OpenAI's shape, token rows by vLLM's /pooling, both as base64.
"""

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.workloads import Kind

Rows = npt.NDArray[np.float32]
PATHS: dict[Kind, str] = {"dense": "/v1/embeddings", "tokens": "/pooling", "rerank": "/rerank"}
"""Where requests of each kind go."""
VALUES: dict[Kind, str] = {"dense": "embedding", "tokens": "data"}
"""The field of an answer's entry that has its rows."""


def body(kind: Kind, model: str, texts: Sequence[str]) -> bytes:
    """Builds a request. The first text of a rerank is its query."""
    fields: dict[str, Any] = {"model": model}
    if kind == "rerank":
        fields |= {"query": texts[0], "documents": list(texts[1:])}
    else:
        fields |= {"input": list(texts), "encoding_format": "base64"}
    if kind == "tokens":
        fields["task"] = "token_embed"
    return json.dumps(fields).encode()


def rows_of(kind: Kind, reply: bytes, lengths: Sequence[int]) -> list[Rows]:
    """Reads the rows [rows, dimensions] of each text, or the scores [1, documents] of a rerank in the order sent.

    `lengths`: tokens of each text. Raises ValueError where the server counted other tokens than the texts have.
    """
    parsed = json.loads(reply)
    if kind == "rerank":
        scores = {result["index"]: result["relevance_score"] for result in parsed["results"]}
        return [np.array([[scores[number] for number in range(len(lengths) - 1)]], dtype=np.float32)]
    if (counted := parsed["usage"]["prompt_tokens"]) != sum(lengths):
        raise ValueError(f"the texts have {sum(lengths)} tokens, and the server counted {counted}")
    ordered = sorted(parsed["data"], key=lambda entry: entry["index"])
    values = [np.frombuffer(base64.b64decode(entry[VALUES[kind]]), dtype="<f4") for entry in ordered]
    counts = lengths if kind == "tokens" else [1] * len(lengths)
    return [value.reshape(count, -1) for value, count in zip(values, counts, strict=True)]
