"""Requests of hosted APIs and of llama.cpp's server, by the parameters that their documents list."""

from dataclasses import replace
from typing import Any

from http_fields.field import (
    CROSS_ENCODER,
    EMBEDDINGS,
    IMAGES,
    LONG,
    MODEL,
    PRIORITY,
    USER,
    Request,
    honoured,
    meaningless,
    refused,
)
from http_fields.vllm import SOURCE as VLLM

OPENAI = Request(
    original="OpenAI, CreateEmbeddingRequest",
    source="platform.openai.com/docs/api-reference/embeddings/create, openapi.yaml 2.3.0",
    paths=EMBEDDINGS,
    body={"input": "a"},
    fields=(
        honoured("input", "a b c"),
        MODEL,
        honoured("dimensions", 4),
        honoured("encoding_format", "base64"),
        USER,
    ),
)

COHERE_SOURCE = "github.com/cohere-ai/cohere-python 7.0.9, src/cohere/{}"
RANKED = (
    honoured("query", "b"),
    honoured("documents", ["b", {"text": "c"}], "a text, or an object with `text`, which comes back whole"),
    MODEL,
    honoured("top_n", 1),
)


def embedded(**texts: Any) -> tuple[Any, ...]:
    """Fields that both versions have. `texts`: some that are over the limit, by the name of this request."""
    return (
        refused("images", ["data:image/png;base64,AAAA"], IMAGES),
        MODEL,
        honoured("input_type", "search_query", "`image` is refused"),
        honoured("embedding_types", ["int8", "ubinary"]),
        honoured("truncate", "START", **texts),
    )


def inputs(text: str) -> list[dict[str, Any]]:
    return [{"content": [{"type": "text", "text": text}]}]


V2_EMBEDS = tuple(
    Request(
        original=f"Cohere, embed of version 2, {name}",
        source=COHERE_SOURCE.format("v2/raw_client.py"),
        paths=("/v2/embed",),
        body={name: some("a b")},
        fields=(
            honoured(name, some("c"), why),
            *embedded(**{name: some(LONG)}),
            honoured("max_tokens", 3, "an upper bound; above the model's limit it has no effect"),
            honoured("output_dimension", 4),
            PRIORITY,
        ),
    )
    for name, some, why in (
        ("texts", lambda text: [text], ""),
        ("inputs", inputs, "one text each; images are refused"),
    )
)
COHERE = (
    Request(
        original="Cohere, rerank of version 1",
        source=COHERE_SOURCE.format("raw_base_client.py"),
        paths=("/v1/rerank",),
        body={"query": "a", "documents": ["b c", {"text": "d", "title": "e"}]},
        fields=(
            *RANKED,
            honoured("return_documents", True),
            refused("rank_fields", ["title"], 'how fields become one text is not documented; ["text"] is accepted'),
            meaningless("max_chunks_per_doc", 3, "an upper bound, and a document is one chunk"),
        ),
        card=CROSS_ENCODER,
    ),
    Request(
        original="Cohere, rerank of version 2",
        source=COHERE_SOURCE.format("v2/raw_client.py"),
        paths=("/v2/rerank",),
        body={"query": "a", "documents": ["b c", "d"]},
        fields=(
            *RANKED,
            honoured("max_tokens_per_doc", 1, "an upper bound; above the model's limit it has no effect"),
            PRIORITY,
        ),
        card=CROSS_ENCODER,
    ),
    Request(
        original="Cohere, embed of version 1",
        source=COHERE_SOURCE.format("raw_base_client.py"),
        paths=("/v1/embed",),
        body={"texts": ["a b"]},
        fields=(honoured("texts", ["b", "c"]), *embedded(texts=[LONG])),
    ),
    *V2_EMBEDS,
    *(
        replace(
            request,
            original=request.original.replace("Cohere, embed of version 2", "vLLM, CohereEmbedRequest"),
            source=VLLM.format("embed"),
        )
        for request in V2_EMBEDS
    ),
)

JINA_SOURCE = "api.jina.ai/openapi.json 2026.02.03, {}"
DIMENSIONS = honoured("dimensions", 4)
ENCODED = honoured("embedding_type", "base64", "`binary`, `ubinary` and lists of types are refused")
INPUT = honoured("input", ["c", {"text": "d"}], "texts, or objects with `text`; images are refused")
UNCUT = honoured("truncation", False, "by default texts are cut", status=400, documents=[LONG])
JINA_EMBEDDINGS = Request(
    original="Jina, embeddings of versions 2 to 4",
    source=JINA_SOURCE.format("EmbeddingsV2Request, EmbeddingsV3Request, EmbeddingsV4Request"),
    paths=EMBEDDINGS,
    body={"input": ["a b"]},
    fields=(
        INPUT,
        MODEL,
        ENCODED,
        honoured("normalized", False),
        honoured("truncate", True, input=[LONG]),
        honoured(
            "task",
            "retrieval.query",
            "the model's prompt of that name, or its adapter; those of code need one, others do without",
        ),
        honoured("late_chunking", True, "the inputs are chunks of one document, joined with nothing in between"),
        DIMENSIONS,
        refused("return_multivector", True, "/v1/multi-vector does it; `false` is accepted"),
        refused("return_tokenized_input", True, "/v1/multi-vector has `return_token_ids`; `false` is accepted"),
    ),
    card={"pools_spans": True},
)
JINA_MULTI_VECTORS = Request(
    original="Jina, token vectors",
    source=JINA_SOURCE.format("ColbertV2Request"),
    paths=("/v1/multi-vector",),
    body={"input": ["a b"]},
    fields=(INPUT, MODEL, ENCODED, honoured("input_type", "query"), DIMENSIONS),
)
JINA_RERANK = Request(
    original="Jina, rerank",
    source=JINA_SOURCE.format("TextRerankerRequest, RerankerV3Request"),
    paths=("/v1/rerank",),
    body={"query": "a", "documents": ["b c", {"text": "d"}]},
    fields=(
        honoured("query", "c", "a text; objects are refused"),
        honoured("documents", [{"text": "d"}], "images are refused"),
        MODEL,
        honoured("top_n", 1),
        honoured("return_documents", True, "by default `false`, as in Cohere's"),
        UNCUT,
        honoured("max_doc_length", 1, "an upper bound; above the model's limit it has no effect"),
        refused("return_embeddings", True, "/v1/embeddings gives them where a model embeds; `false` is accepted"),
    ),
    card=CROSS_ENCODER,
)

NIM_SOURCE = "docs.nvidia.com/nim/nemo-retriever/{}/reference.html"
NIM = (
    Request(
        original="NVIDIA NIM, embeddings",
        source=NIM_SOURCE.format("text-embedding/2.2.0"),
        paths=EMBEDDINGS,
        body={"input": ["a b"]},
        fields=(
            MODEL,
            honoured("input", ["c"]),
            honoured("input_type", "query"),
            refused("modality", "image", "only texts are served, no images, audio or video; `text` is accepted"),
            refused("embedding_type", "int8", "`float` is accepted"),
            honoured("encoding_format", "base64"),
            DIMENSIONS,
            honoured("truncate", "START", input=[LONG]),
            USER,
        ),
    ),
    Request(
        original="NVIDIA NIM, ranking",
        source=NIM_SOURCE.format("text-reranking/2.3"),
        paths=("/v1/ranking",),
        body={"query": {"text": "a"}, "passages": [{"text": "b c"}, {"text": "d"}]},
        fields=(
            MODEL,
            honoured("query", {"text": "c"}),
            refused("query.image", "data:image/png;base64,AAAA", IMAGES),
            honoured("passages", [{"text": "d"}], "images are refused"),
            honoured("truncate", "END", passages=[{"text": LONG}]),
        ),
        card=CROSS_ENCODER,
    ),
)

VOYAGE_SOURCE = "docs.voyageai.com/reference/{} and voyageai 0.5.0"
VOYAGE_EMBEDDINGS = Request(
    original="Voyage, embeddings",
    source=VOYAGE_SOURCE.format("embeddings-api"),
    paths=EMBEDDINGS,
    body={"input": ["a b"]},
    fields=(
        honoured("input", ["c"]),
        MODEL,
        honoured("input_type", "query"),
        honoured("truncation", True, "by default as the frontend's --auto-truncate says", input=LONG),
        honoured("encoding_format", "base64"),
        honoured("output_dimension", 4),
        honoured(
            "output_dtype",
            "binary",
            "`float`, `binary`, `ubinary`; `int8` and `uint8`, whose scale is Voyage's own, are refused",
        ),
    ),
)
VOYAGE_RERANK = Request(
    original="Voyage, rerank",
    source=VOYAGE_SOURCE.format("reranker-api"),
    paths=("/v1/rerank",),
    body={"query": "a", "documents": ["b c", "d"]},
    fields=(
        honoured("query", "c"),
        honoured("documents", ["d"]),
        MODEL,
        honoured("top_k", 1),
        honoured("return_documents", True),
        UNCUT,
    ),
    card=CROSS_ENCODER,
)

LLAMA_CPP = tuple(
    Request(
        original=f"llama.cpp, reranking of {name}",
        source="github.com/ggml-org/llama.cpp, tools/server/README.md",
        paths=("/reranking", "/v1/reranking"),
        body={"query": "a", name: ["b c", "d"]},
        fields=(honoured("query", "c"), honoured(name, ["d"]), *fields, honoured("top_n", 1)),
        card=CROSS_ENCODER,
    )
    for name, fields in (("documents", (MODEL,)), ("texts", (honoured("return_text", True),)))
)
REQUESTS = (
    OPENAI,
    *COHERE,
    JINA_EMBEDDINGS,
    JINA_MULTI_VECTORS,
    JINA_RERANK,
    *NIM,
    VOYAGE_EMBEDDINGS,
    VOYAGE_RERANK,
    *LLAMA_CPP,
)
