"""Jina's requests, by its OpenAPI document."""

from dataclasses import replace

from http_fields.cohere import MODEL
from http_fields.field import Request
from http_fields.vllm import CROSS_ENCODER, LONG, honoured, refused

SOURCE = "api.jina.ai/openapi.json 2026.02.03, {}"
POOLS_SPANS = {"pools_spans": True}
DIMENSIONS = honoured("dimensions", 4)
ENCODED = honoured("embedding_type", "base64", "`binary`, `ubinary` and lists of types are refused")
INPUT = honoured("input", ["c", {"text": "d"}], "texts, or objects with `text`; images are refused")
EMBEDDINGS = tuple(
    Request(
        original="Jina, embeddings of versions 2 to 4",
        source=SOURCE.format("EmbeddingsV2Request, EmbeddingsV3Request, EmbeddingsV4Request"),
        path=path,
        body={"input": ["a b"]},
        fields=(
            INPUT,
            MODEL,
            ENCODED,
            honoured("normalized", False),
            honoured("truncate", True, input=[LONG]),
            honoured(
                "task", "retrieval.query", "the model's prompt of that name; those of code need one, others do without"
            ),
            honoured("late_chunking", True, "the inputs are chunks of one document, joined with nothing in between"),
            DIMENSIONS,
            refused("return_multivector", True, "/v1/multi-vector does it; `false` is accepted"),
            refused("return_tokenized_input", True, "/v1/multi-vector has `return_token_ids`; `false` is accepted"),
        ),
        card=POOLS_SPANS,
    )
    for path in ("/v1/embeddings", "/embeddings")
)
MULTI_VECTORS = Request(
    original="Jina, token vectors",
    source=SOURCE.format("ColbertV2Request"),
    path="/v1/multi-vector",
    body={"input": ["a b"]},
    fields=(INPUT, MODEL, ENCODED, honoured("input_type", "query"), DIMENSIONS),
)
RERANK = Request(
    original="Jina, rerank",
    source=SOURCE.format("TextRerankerRequest, RerankerV3Request"),
    path="/v1/rerank",
    body={"query": "a", "documents": ["b c", {"text": "d"}]},
    fields=(
        honoured("query", "c", "a text; objects are refused"),
        honoured("documents", [{"text": "d"}], "images are refused"),
        MODEL,
        honoured("top_n", 1),
        honoured("return_documents", True, "by default `false`, as in Cohere's"),
        replace(honoured("truncation", False, "by default texts are cut", documents=[LONG]), status=400),
        honoured("max_doc_length", 1, "an upper bound; above the model's limit it has no effect"),
        refused("return_embeddings", True, "/v1/embeddings gives them where a model embeds; `false` is accepted"),
    ),
    card=CROSS_ENCODER,
)
REQUESTS = (*EMBEDDINGS, MULTI_VECTORS, RERANK)
