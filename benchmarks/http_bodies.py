"""Requests of ours as the JSON that peers take: OpenAI's embeddings, Cohere's and Jina's rerank (Infinity, vLLM)."""

import json

from google.protobuf.message import Message

from selvage.v1 import embedding_pb2, ranking_pb2


def http_body(message: Message, model: str) -> bytes:
    """The same texts; a prompt is put before each, since these shapes have none. Raises TypeError.

    Vectors are asked for in base64: the cheaper answer for both sides, and what OpenAI's own client asks for.
    """
    if isinstance(message, embedding_pb2.EmbedRequest):
        texts = [message.prompt + text for text in message.texts]
        shape: dict[str, object] = {"model": model, "input": texts, "encoding_format": "base64"}
    elif isinstance(message, ranking_pb2.RerankRequest):
        shape = {"model": model, "query": message.query, "documents": list(message.documents), "top_n": message.top_n}
    else:
        raise TypeError(f"{type(message).__name__} has no counterpart over HTTP")
    return json.dumps(shape).encode()
