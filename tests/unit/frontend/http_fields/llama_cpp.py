"""Requests of llama.cpp's server to rerank, in its two forms."""

from http_fields.cohere import MODEL
from http_fields.field import Request
from http_fields.vllm import CROSS_ENCODER, honoured

SOURCE = "github.com/ggml-org/llama.cpp, tools/server/README.md"
REQUESTS = tuple(
    Request(
        original=f"llama.cpp, reranking of {name}",
        source=SOURCE,
        path=path,
        body={"query": "a", name: ["b c", "d"]},
        fields=(honoured("query", "c"), honoured(name, ["d"]), *fields),
        card=CROSS_ENCODER,
    )
    for name, fields in (
        ("documents", (MODEL, honoured("top_n", 1))),
        ("texts", (honoured("return_text", True), honoured("top_n", 1))),
    )
    for path in ("/reranking", "/v1/reranking")
)
