"""The options of calls: each stands here alone, with its type, what it means, and how a request holds it.

`help` of a client's method shows them. An option that is not given, or None, is left to the service.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypedDict, get_type_hints

from selvage.errors import InvalidInput
from selvage.v1 import ranking_pb2, vectors_pb2

Model = Annotated[str, "the model's name, by default the client's, else the only one"]
InputType = Annotated[
    Literal["query", "document"] | None, '"query" or "document", for models that treat them differently'
]
Prompt = Annotated[str | None, "put before each text; an empty one means no prompt"]
PromptName = Annotated[str | None, "uses a prompt of the model's files"]
Truncate = Annotated[
    bool | None,
    "True cuts texts that are over a limit; False refuses them. By default they are refused, unless the frontend runs "
    "with `--auto-truncate`",
]
TruncationSide = Annotated[
    Literal["left", "right"] | None, 'the side that is cut, "left" or "right", by default the model\'s'
]
MaxTokens = Annotated[int | None, "a lower limit than the model's, in tokens"]
Instruction = Annotated[
    str | None,
    "put before the query instead of the model's own prompt or marker; in the template of a yes/no reranker and in the "
    "text of a listwise one, what it calls the instruction",
]
LIMIT_OF_SCORED = (
    'a lower limit than the model\'s, in tokens. It counts special tokens, except for "cross_encoder" and "listwise", '
    "and never query expansion"
)
MaxTokensPerQuery = Annotated[int | None, LIMIT_OF_SCORED]
PoolFactor = Annotated[
    float | None,
    "keep about 1 / pool_factor of a document's token rows, as means of clusters; 1 pools nothing. By default as the "
    "model's files say",
]
ProtectedTokens = Annotated[int | None, "with pool_factor, so many rows at the start are not pooled, by default 1"]
Progress = Annotated[bool, "show how far the call is, by tqdm, else ImportError"]
Timeout = Annotated[float | None, "seconds for the whole call with its retries, by default the client's"]


class VectorOptions(TypedDict, total=False):
    """The options of vectors, also of streams, of files and of clusters."""

    model: Model
    input_type: InputType
    prompt: Prompt
    prompt_name: PromptName
    dimensions: Annotated[int | None, "keep the leading ones"]
    normalize: Annotated[bool | None, "scale rows to unit length, by default as the model's files say"]
    data_type: Annotated[
        str,
        '"float32"; "float16"; "bfloat16" (half the bytes to transfer, returned as float32); "int8" (a value is its '
        'number x the scale of its row, see `Embeddings`; cosines need no scales); or "binary" (uint8, eight '
        "dimensions a byte, the first in the highest bit)",
    ]
    truncate: Truncate
    truncation_side: TruncationSide
    max_tokens: MaxTokens
    sparse_top_k: Annotated[int | None, "keep this many of the largest weights of each text"]
    pool_factor: PoolFactor
    protected_tokens: ProtectedTokens


class EmbedOptions(VectorOptions, total=False):
    """The options of `embed`."""

    return_token_ids: Annotated[bool, "return the token ids of multi-vectors, in `Embeddings`"]
    late_chunking: Annotated[
        bool,
        "the texts are consecutive chunks of one document, in one request: the model reads it as a whole, all chunks "
        "joined with nothing in between, and each chunk's vector is pooled from its own tokens",
    ]
    window_overlap: Annotated[
        int | None,
        "with late_chunking or spans, a document over the model's limit is read in windows that share so many tokens, "
        "else refused",
    ]
    sparse_format: Annotated[Literal["dict", "csr"], '"dict" or "csr", which needs scipy, else ImportError']
    progress: Progress
    timeout: Timeout


class ScoringOptions(TypedDict, total=False):
    """The options that `rerank` and `score` have in common."""

    model: Model
    method: Annotated[
        str | None,
        '"cross_encoder", "listwise", "late_interaction", "dense", "sparse" or "hybrid", by default the model\'s own',
    ]
    weights: Annotated[
        Mapping[str, float] | None,
        'for "hybrid" only, such as {"dense": 1, "sparse": 0.3, "multi_vector": 1}; they are divided by their sum. An '
        "output that is not named weighs nothing; by default all weigh the same",
    ]
    normalize: Annotated[
        bool | None,
        "True compares rows of unit length, takes the mean over the query's tokens and applies a cross-encoder's "
        "activation; False compares rows as the model makes them, takes the sum and returns the logit. By default "
        '"late_interaction" and "cross_encoder" do as the model\'s files say, "dense" and "hybrid" as for True. Scores '
        'of "listwise" are cosines either way',
    ]
    instruction: Instruction
    max_tokens_per_query: MaxTokensPerQuery
    max_tokens_per_document: Annotated[int | None, LIMIT_OF_SCORED]
    pool_factor: PoolFactor
    protected_tokens: ProtectedTokens
    truncate: Truncate
    progress: Progress
    timeout: Timeout


class MaxSimOptions(TypedDict, total=False):
    """The options of `max_sim`."""

    normalize: Annotated[
        bool | None,
        "True scales the rows of both sides to unit length and takes the mean over query rows; False leaves all rows "
        "as they are and takes the sum. By default as False where queries are arrays; where they are strings, the "
        "model's files say whether query rows get unit length, and whether the score is the sum or the mean",
    ]
    model: Model
    instruction: Instruction
    max_tokens_per_query: MaxTokensPerQuery
    truncate: Truncate
    progress: Progress
    timeout: Timeout


class ClassifyOptions(TypedDict, total=False):
    """The options of `classify`."""

    model: Model
    prompt: Annotated[
        str | None,
        "put before each text; an empty one means no prompt. In the template of a yes/no reranker, what it calls the "
        "instruction",
    ]
    prompt_name: PromptName
    normalize: Annotated[
        bool | None,
        "True applies the model's activation, or sigmoid (one label) or softmax where it has none; False returns "
        "logits. By default as the model's files say",
    ]
    truncate: Truncate
    max_tokens: MaxTokens
    progress: Progress
    timeout: Timeout


class ClassifyTokensOptions(ClassifyOptions, total=False):
    """The options of `classify_tokens`."""

    token_id: Annotated[
        int | None,
        "score only tokens of this id, such as the mark behind each step in texts for a reward model. By default all "
        "tokens, special ones included",
    ]
    truncation_side: TruncationSide


class TokenizeOptions(TypedDict, total=False):
    """The options of `tokenize`."""

    model: Model
    input_type: InputType
    prompt: Prompt
    prompt_name: PromptName
    truncate: Truncate
    truncation_side: TruncationSide
    max_tokens: MaxTokens
    timeout: Timeout


class DetokenizeOptions(TypedDict, total=False):
    """The options of `detokenize`."""

    model: Model
    input_type: Annotated[
        Literal["query", "document"] | None,
        '"query" or "document", for models that read the two with different tokenizers',
    ]
    skip_special_tokens: Annotated[bool, "leave special tokens out"]
    timeout: Timeout


DEFAULTS: dict[str, Any] = {
    "model": "",
    "data_type": "float32",
    "sparse_format": "dict",
    **dict.fromkeys(("return_token_ids", "late_chunking", "progress", "skip_special_tokens"), False),
}
"""The defaults of options whose default is not None."""
ENUMS: dict[str, Any] = {
    "input_type": vectors_pb2.InputType,
    "data_type": vectors_pb2.DataType,
    "truncation_side": vectors_pb2.TruncationSide,
    "method": vectors_pb2.ScoringMethod,
}
"""The enum of each option whose values are words."""


def with_defaults(kind: Any, options: Mapping[str, Any], model: str) -> dict[str, Any]:
    """All options of a TypedDict; `model` where they name none. Raises TypeError for one that it does not have."""
    names = kind.__annotations__
    for name in options:
        if name not in names:
            raise TypeError(f"there is no option {name!r}; there are {', '.join(names)}")
    chosen = {name: options.get(name, DEFAULTS.get(name)) for name in names}
    return chosen | {"model": chosen["model"] or model}


def explanations(kind: Any) -> dict[str, str]:
    """What each option of a TypedDict means, by its name."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


def request_fields(**options: Any) -> dict[str, Any]:
    """Options as a request holds them. Raises InvalidInput for a choice that is none, and for two prompts."""
    if options.get("prompt") is not None and options.get("prompt_name") is not None:
        raise InvalidInput("prompt and prompt_name exclude each other", field="prompt")
    fields = {name: value for name, value in options.items() if value is not None and (name not in ENUMS or value)}
    for name in ENUMS.keys() & fields.keys():
        fields[name] = enum_number(ENUMS[name], fields[name], name)
    if "weights" in fields:
        for name in fields["weights"]:
            enum_number(vectors_pb2.OutputKind, name, "weights")
        fields["weights"] = ranking_pb2.HybridWeights(**fields["weights"])
    return fields


def enum_number(enum: Any, name: str, field: str) -> Any:
    """The number of a name such as "late_interaction". Raises InvalidInput where there is no such name."""
    choices = enum_names(enum)
    if name not in choices:
        raise InvalidInput(f"{field} is {name!r}; there are {', '.join(choices)}", field=field)
    return enum.DESCRIPTOR.values_by_name[_prefix(enum.DESCRIPTOR) + name.upper()].number


def enum_name(descriptor: Any, number: int) -> str:
    """The name of a number of an enum; the number itself, as text, where only a newer contract has it."""
    value = descriptor.values_by_number.get(number)
    return value.name.removeprefix(_prefix(descriptor)).lower() if value else str(number)


@cache
def enum_names(enum: Any) -> tuple[str, ...]:
    """All names that callers may use; 0 has none, because it stands for the default."""
    return tuple(enum_name(enum.DESCRIPTOR, value.number) for value in enum.DESCRIPTOR.values if value.number)


@cache
def _prefix(descriptor: Any) -> str:
    """What the names of an enum's values begin with, such as INPUT_TYPE_ for InputType."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", descriptor.name).upper() + "_"
