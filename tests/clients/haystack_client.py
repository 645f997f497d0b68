"""Haystack's embedders as a program: a question a line, an answer a line. Runs in a venv of its own, with its packages.

Knows nothing of this project: only the address. One process answers many questions, since imports take seconds.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

from haystack.dataclasses import Document
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
    HuggingFaceTEISparseDocumentEmbedder,
    HuggingFaceTEISparseTextEmbedder,
)

Told = dict[str, Any]


def dense(address: str, texts: list[str], options: Told) -> Told:
    """Documents by one stream, by several at once, and one text alone."""
    choice: Told = {"api_type": "text_embeddings_inference", "api_params": {"url": address}, "use_grpc": True}
    documents = [Document(content=text) for text in texts]
    embedder = HuggingFaceAPIDocumentEmbedder(**choice, **options, progress_bar=False)
    return {
        "documents": vectors(embedder.run(documents)),
        "concurrently": vectors(asyncio.run(embedder.run_async(documents))),
        "text": HuggingFaceAPITextEmbedder(**choice, **options).run(texts[0])["embedding"],
    }


def vectors(told: Any) -> list[list[float]]:
    return [document.embedding for document in told["documents"]]


def sparse(address: str, texts: list[str], _: Told) -> Told:
    """The same with sparse vectors."""
    documents = [Document(content=text) for text in texts]
    embedder = HuggingFaceTEISparseDocumentEmbedder(api_base_url=address, use_grpc=True, progress_bar=False)
    text = HuggingFaceTEISparseTextEmbedder(api_base_url=address, use_grpc=True).run(texts[0])["sparse_embedding"]
    found = [document.sparse_embedding for document in embedder.run(documents)["documents"]]
    return {"documents": [[each.indices, each.values] for each in found], "text": [text.indices, text.values]}


DOES: dict[str, Callable[[str, list[str], Told], Told]] = {"dense": dense, "sparse": sparse}


if __name__ == "__main__":
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            told = DOES[asked["does"]](asked["url"], asked["texts"], asked["options"])
        except Exception as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), flush=True)
