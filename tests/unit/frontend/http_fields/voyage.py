"""Voyage's requests, by the parameters of its API."""

from dataclasses import replace

from http_fields.cohere import MODEL
from http_fields.field import Request
from http_fields.vllm import CROSS_ENCODER, LONG, honoured

SOURCE = "docs.voyageai.com/reference/{} and voyageai 0.5.0"
TRUNCATION = honoured("truncation", True, "by default as the frontend's --auto-truncate says", input=LONG)
EMBEDDINGS = tuple(
    Request(
        original="Voyage, embeddings",
        source=SOURCE.format("embeddings-api"),
        path=path,
        body={"input": ["a b"]},
        fields=(
            honoured("input", ["c"]),
            MODEL,
            honoured("input_type", "query"),
            TRUNCATION,
            honoured("encoding_format", "base64"),
            honoured("output_dimension", 4),
            honoured(
                "output_dtype",
                "binary",
                "`float`, `binary`, `ubinary`; `int8` and `uint8`, whose scale is Voyage's own, are refused",
            ),
        ),
    )
    for path in ("/v1/embeddings", "/embeddings")
)
RERANK = Request(
    original="Voyage, rerank",
    source=SOURCE.format("reranker-api"),
    path="/v1/rerank",
    body={"query": "a", "documents": ["b c", "d"]},
    fields=(
        honoured("query", "c"),
        honoured("documents", ["d"]),
        MODEL,
        honoured("top_k", 1),
        honoured("return_documents", True),
        replace(honoured("truncation", False, "by default texts are cut", documents=[LONG]), status=400),
    ),
    card=CROSS_ENCODER,
)
REQUESTS = (*EMBEDDINGS, RERANK)
