"""vLLM's requests, field by field; its older names of fields are those of versions 0.11 to 0.14."""

from typing import Any

from http_fields.field import (
    CLASSIFIER,
    CROSS_ENCODER,
    EMBEDDINGS,
    IMAGES,
    LONG,
    MODEL,
    PRIORITY,
    USER,
    Field,
    Request,
    honoured,
    meaningless,
    refused,
)

SOURCE = "github.com/vllm-project/vllm, vllm/entrypoints/pooling/{}/protocol.py, commits 020638a6 and 055e47c2 of 2026"
MESSAGES = [{"role": "user", "content": "a"}]
CHAT = "chat templates are not applied"


def basic(**texts: Any) -> tuple[Field, ...]:
    """PoolingBasicRequestMixin. `texts`: some that are over the limit, by the names of this request."""
    return (
        MODEL,
        USER,
        honoured("truncate_prompt_tokens", 4, "an upper bound; above the model's limit it has no effect", **texts),
        honoured("truncation_side", "left", **texts, truncate_prompt_tokens=5),
        refused("padding", "max_length", "texts are never padded; `do_not_pad` is accepted"),
        honoured("request_id", "mine", "names the reply; logs go by the header x-request-id"),
        PRIORITY,
        refused("mm_processor_kwargs", {"num_crops": 4}, IMAGES),
        meaningless("cache_salt", "salt", "no cache is shared between requests"),
    )


OPTIONS = (
    refused("add_special_tokens", False, "texts get what the model was trained with; `true` is accepted"),
    refused("messages", MESSAGES, CHAT),
    refused("add_generation_prompt", True, CHAT),
    refused("continue_final_message", True, CHAT),
    refused("chat_template", "{{ messages }}", CHAT),
    refused("chat_template_kwargs", {"instruction": "b"}, CHAT),
    refused("media_io_kwargs", {"image": {}}, IMAGES),
)
INPUT = honoured("input", ["a b c"], "texts, or token ids; messages of a chat are refused")
LABELLED = honoured("input", ["a b c"], "texts; token ids are refused")
TEXTS = "texts; objects are refused"
ENCODINGS = (
    honoured("encoding_format", "base64", "`float`, `base64`; `bytes` and `bytes_only` are refused"),
    honoured(
        "embed_dtype",
        "float16",
        "`float32`, `float16`, `bfloat16`; the two of fp8 are refused",
        encoding_format="base64",
    ),
    refused("endianness", "big", "base64 is little-endian; `native` and `little` are accepted"),
)
VECTORS = (
    *ENCODINGS,
    honoured("dimensions", 4),
    honoured("use_activation", False, "rows as the model gives them"),
    honoured("normalize", False, "an older name of `use_activation`"),
)
LABELS = (
    honoured("use_activation", False, "logits"),
    honoured("softmax", False, "an older name of `use_activation`"),
    honoured("activation", False, "an older name of `use_activation`"),
)


def scoring(**texts: Any) -> tuple[Field, ...]:
    """ScoringRequestMixin."""
    return (
        *basic(**texts),
        *LABELS,
        honoured("max_tokens_per_query", 1, "an upper bound; 0: none"),
        honoured("max_tokens_per_doc", 1, "an upper bound; 0: none"),
        honoured("instruction", "c"),
        refused("chat_template_kwargs", {"instruction": "c"}, "`instruction` does it"),
    )


EMBED = Request(
    original="vLLM, EmbeddingCompletionRequest and EmbeddingChatRequest",
    source=SOURCE.format("embed"),
    paths=EMBEDDINGS,
    body={"input": "a"},
    fields=(INPUT, *OPTIONS, *basic(input=LONG), *VECTORS),
)
TASK = honoured("task", "token_embed", "`plugin` and `embed&token_classify` are refused")
PLUGIN = refused("data", {"image": "x"}, "there are no plugins")
POOLINGS = tuple(
    Request(
        original=f"vLLM, PoolingCompletionRequest, PoolingChatRequest and IOProcessorRequest, {of}",
        source=SOURCE.format("pooling"),
        paths=("/pooling", "/v1/pooling"),
        body={"input": "a"},
        fields=(texts, *OPTIONS, *basic(input=LONG), PLUGIN, *fields),
        card=card,
    )
    for of, card, texts, fields in (
        ("of vectors", {}, INPUT, (TASK, *VECTORS)),
        ("of labels", CLASSIFIER, LABELLED, (*ENCODINGS, refused("dimensions", 4, "labels have none"), *LABELS)),
    )
)
CLASSIFICATION = Request(
    original="vLLM, ClassificationCompletionRequest and ClassificationChatRequest",
    source=SOURCE.format("classify"),
    paths=("/classify", "/v1/classify"),
    body={"input": "a"},
    fields=(LABELLED, *OPTIONS, *basic(input=LONG), *LABELS),
    card=CLASSIFIER,
)
SCORES = tuple(
    Request(
        original=f"vLLM, Score{name}Request",
        source=SOURCE.format("scoring"),
        paths=("/score", "/v1/score"),
        body={first: "a b", second: ["c d", "e"]},
        fields=(
            honoured(first, "b", TEXTS),
            honoured(second, ["b"], TEXTS),
            *scoring(**{first: "a b c", second: [LONG]}),
        ),
        card=CROSS_ENCODER,
    )
    for name, first, second in (
        ("Text", "text_1", "text_2"),
        ("Data", "data_1", "data_2"),
        ("QueriesDocuments", "queries", "documents"),
        ("QueriesItems", "queries", "items"),
    )
)
RERANK = Request(
    original="vLLM, RerankRequest",
    source=SOURCE.format("scoring"),
    paths=("/rerank", "/v1/rerank", "/v2/rerank"),
    body={"query": "a b", "documents": ["c d", "e"]},
    fields=(
        honoured("query", "b", "a text; objects are refused"),
        honoured("documents", ["b"], "texts, or objects with `text`; others are refused"),
        honoured("top_n", 1, "0: all"),
        *scoring(query="a b c", documents=[LONG]),
    ),
    card=CROSS_ENCODER,
)
TOKENS = "github.com/vllm-project/vllm, vllm/entrypoints/serve/tokenize/protocol.py"
TOKENIZE = Request(
    original="vLLM, TokenizeCompletionRequest and TokenizeChatRequest",
    source=TOKENS,
    paths=("/tokenize",),
    body={"prompt": "a b"},
    fields=(
        honoured("prompt", "c"),
        MODEL,
        honoured("add_special_tokens", False),
        honoured("return_token_strs", True),
        refused("messages", MESSAGES, CHAT),
    ),
)
DETOKENIZE = Request(
    original="vLLM, DetokenizeRequest",
    source=TOKENS,
    paths=("/detokenize",),
    body={"tokens": [1, 4, 2]},
    fields=(honoured("tokens", [5]), MODEL),
)
REQUESTS = (EMBED, *POOLINGS, CLASSIFICATION, *SCORES, RERANK, TOKENIZE, DETOKENIZE)
