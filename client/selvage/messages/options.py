"""The options of calls: each stands here alone, with its type and how a request holds it.

The docstrings of the client's methods explain them. An option that is not given, or None, is left to the service.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypedDict

from selvage.errors import InvalidInput
from selvage.v1 import ranking_pb2, vectors_pb2


class VectorOptions(TypedDict, total=False):
    """The options of vectors, also of streams, of files and of clusters."""

    model: str
    input_type: Literal["query", "document"] | None
    prompt: str | None
    prompt_name: str | None
    dimensions: int | None
    normalize: bool | None
    data_type: str
    truncate: bool | None
    truncation_side: Literal["left", "right"] | None
    max_tokens: int | None
    sparse_top_k: int | None
    pool_factor: float | None
    protected_tokens: int | None


class EmbedRequestOptions(VectorOptions, total=False):
    """All options that an EmbedRequest holds beside its outputs and its texts."""

    return_token_ids: bool
    late_chunking: bool
    window_overlap: int | None


class EmbedOptions(EmbedRequestOptions, total=False):
    """The options of `embed` that every output takes."""

    sparse_format: Literal["dict", "csr"]
    progress: bool
    timeout: float | None


class ScoringOptions(TypedDict, total=False):
    """The options that `rerank` and `score` have in common."""

    model: str
    method: str | None
    weights: Mapping[str, float] | None
    normalize: bool | None
    instruction: str | None
    max_tokens_per_query: int | None
    max_tokens_per_document: int | None
    truncate: bool | None
    progress: bool
    timeout: float | None


class ClassifyOptions(TypedDict, total=False):
    """The options of `classify`."""

    model: str
    prompt: str | None
    prompt_name: str | None
    normalize: bool | None
    truncate: bool | None
    max_tokens: int | None
    progress: bool
    timeout: float | None


class ClassifyTokensOptions(ClassifyOptions, total=False):
    """The options of `classify_tokens`."""

    token_id: int | None
    truncation_side: Literal["left", "right"] | None


class TokenizeOptions(TypedDict, total=False):
    """The options of `tokenize`."""

    model: str
    input_type: Literal["query", "document"] | None
    prompt: str | None
    prompt_name: str | None
    truncate: bool | None
    truncation_side: Literal["left", "right"] | None
    max_tokens: int | None
    timeout: float | None


DEFAULTS: dict[str, Any] = {
    "model": "",
    "data_type": "float32",
    "sparse_format": "dict",
    **dict.fromkeys(("return_token_ids", "late_chunking", "progress"), False),
}
"""The defaults of options whose default is not None."""
ENUMS: dict[str, Any] = {
    "input_type": vectors_pb2.InputType,
    "data_type": vectors_pb2.DataType,
    "truncation_side": vectors_pb2.TruncationSide,
    "method": vectors_pb2.ScoringMethod,
}
"""The enum of each option whose values are words."""


def with_defaults(kind: Any, options: Mapping[str, Any], model: str = "") -> dict[str, Any]:
    """All options of a TypedDict; `model` where they name none. Raises TypeError for one that it does not have."""
    names = kind.__annotations__
    for name in options:
        if name not in names:
            raise TypeError(f"there is no option {name!r}; there are {', '.join(names)}")
    chosen = {name: options.get(name, DEFAULTS.get(name)) for name in names}
    return chosen | {"model": chosen["model"] or model}


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
