"""text-embeddings-inference's requests, by the structs of its router."""

from typing import Any

from http_fields.field import CROSS_ENCODER, LONG, Field, Request, honoured
from http_fields.hosted import OPENAI
from shared.vectors import Activation, OutputKind, Task

SOURCE = "github.com/huggingface/text-embeddings-inference 0d124dc, router/src/http/types.rs"
PROMPTED: dict[str, object] = {"prompts": {"query": "query : "}}
LABELLED = {"tasks": (Task.EMBED, Task.CLASSIFY), "labels": ("yes", "no"), "activation": Activation.SOFTMAX}
INPUTS = honoured("inputs", ["c", "d e"], "texts, or token ids; both in one list are refused")
PROMPT = honoured("prompt_name", "query")
RAW = honoured("raw_scores", True)


def cutting(within: str = "", **texts: Any) -> tuple[Field, ...]:
    """Fields that say what is done with `texts` over the limit. `within`: what the fields are part of."""
    truncate = {f"{within}truncate": True}
    return (
        honoured(f"{within}truncate", True, "by default as the frontend's --auto-truncate says", **texts),
        honoured(f"{within}truncation_direction", "left", **texts, **truncate),
    )


def request(
    struct: str, path: str, body: dict[str, Any], *fields: Field, card: dict[str, object] = PROMPTED
) -> Request:
    original = f"text-embeddings-inference, {struct}"
    return Request(original=original, source=SOURCE, paths=(path,), body=body, fields=fields, card=card)


REQUESTS = (
    request(
        "EmbedRequest",
        "/embed",
        {"inputs": "a b"},
        INPUTS,
        *cutting(inputs=LONG),
        PROMPT,
        honoured("normalize", False),
        honoured("dimensions", 4),
    ),
    *(
        request(
            struct,
            path,
            {"inputs": "a b"},
            INPUTS,
            *cutting(inputs=LONG),
            PROMPT,
            card=PROMPTED | {"outputs": (output,)},
        )
        for struct, path, output in (
            ("EmbedAllRequest", "/embed_all", OutputKind.MULTI_VECTOR),
            ("EmbedSparseRequest", "/embed_sparse", OutputKind.SPARSE),
        )
    ),
    *(
        request(
            f"PredictRequest, {of}",
            "/predict",
            {"inputs": inputs},
            honoured("inputs", others, "texts beside pairs are refused"),
            *cutting(inputs=long),
            RAW,
            card=card,
        )
        for of, inputs, others, long, card in (
            ("texts", "a b", [["c"], ["d e"]], LONG, LABELLED),
            ("pairs", ["a", "b"], [["c", "d e"]], ["a", LONG], CROSS_ENCODER),
        )
    ),
    request(
        "RerankRequest",
        "/rerank",
        {"query": "a", "texts": ["b c", "d"]},
        honoured("query", "c"),
        honoured("texts", ["e"]),
        *cutting(texts=[LONG]),
        RAW,
        honoured("return_text", True),
        card=CROSS_ENCODER,
    ),
    request(
        "SimilarityRequest and SimilarityParameters",
        "/similarity",
        {"inputs": {"source_sentence": "a", "sentences": ["b c"]}},
        honoured("inputs", {"source_sentence": "c", "sentences": ["d", "e"]}),
        *cutting("parameters.", inputs={"source_sentence": LONG, "sentences": ["a"]}),
        honoured("parameters.prompt_name", "query"),
    ),
    request(
        "TokenizeRequest",
        "/tokenize",
        {"inputs": "a b"},
        honoured("inputs", ["c"]),
        honoured("add_special_tokens", False),
        PROMPT,
    ),
    request(
        "DecodeRequest",
        "/decode",
        {"ids": [1, 4, 2]},
        honoured("ids", [[5], [6]]),
        honoured("skip_special_tokens", False),
    ),
    request("OpenAICompatRequest", "/v1/embeddings", {"input": "a"}, *OPENAI.fields),
)
