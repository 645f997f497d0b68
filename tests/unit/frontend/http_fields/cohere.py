"""Cohere's requests, by the parameters of its Python client."""

from dataclasses import replace
from typing import Any

from http_fields.field import Request
from http_fields.vllm import CROSS_ENCODER, IMAGES, LONG, honoured, meaningless, refused
from http_fields.vllm import SOURCE as VLLM

SOURCE = "github.com/cohere-ai/cohere-python 7.0.9, src/cohere/{}"
MODEL = honoured("model", "another", "another model than the one served is 404")
PRIORITY = refused("priority", 5, "the header selvage-priority does it; 0 is accepted")
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


LATER = (
    honoured("max_tokens", 3, "an upper bound; above the model's limit it has no effect"),
    honoured("output_dimension", 4),
    PRIORITY,
)


def inputs(text: str) -> list[dict[str, Any]]:
    return [{"content": [{"type": "text", "text": text}]}]


V2_EMBEDS = tuple(
    Request(
        original=f"Cohere, embed of version 2, {name}",
        source=SOURCE.format("v2/raw_client.py"),
        path="/v2/embed",
        body={name: some("a b")},
        fields=(honoured(name, some("c"), why), *embedded(**{name: some(LONG)}), *LATER),
    )
    for name, some, why in (
        ("texts", lambda text: [text], ""),
        ("inputs", inputs, "one text each; images are refused"),
    )
)
VLLM_EMBEDS = tuple(
    replace(
        request,
        original=request.original.replace("Cohere, embed of version 2", "vLLM, CohereEmbedRequest"),
        source=VLLM.format("embed"),
    )
    for request in V2_EMBEDS
)
REQUESTS = (
    Request(
        original="Cohere, rerank of version 1",
        source=SOURCE.format("raw_base_client.py"),
        path="/v1/rerank",
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
        source=SOURCE.format("v2/raw_client.py"),
        path="/v2/rerank",
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
        source=SOURCE.format("raw_base_client.py"),
        path="/v1/embed",
        body={"texts": ["a b"]},
        fields=(honoured("texts", ["b", "c"]), *embedded(texts=[LONG])),
    ),
    *V2_EMBEDS,
    *VLLM_EMBEDS,
)
