"""The card of a model, from its message. Each field means what its comment in model.proto says."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from selvage.messages import enums
from selvage.v1 import model_pb2, vectors_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class LateInteraction:
    """How a late-interaction model reads texts. `query_expansion`: "fixed", "min", or "" for none."""

    query_length: int
    document_length: int
    query_expansion: str
    expansion_length: int
    expansion_id: int
    attend_to_expansion: bool
    skiplist: tuple[int, ...]
    skip_in_queries: bool
    skip_in_documents: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What a model is and how it reads texts.

    Choices have the names that calls take: `outputs` such as "dense", `methods` such as "late_interaction". Lengths are
    in tokens, `weight_bytes` in bytes. The `fingerprint` changes with everything that changes a vector.
    """

    id: str
    family: str
    outputs: tuple[str, ...]
    methods: tuple[str, ...]
    default_method: str
    pooling: str
    dimensions: int
    allowed_dimensions: tuple[int, ...]
    multi_vector_dimensions: int
    normalizes: bool
    prompts: Mapping[str, str]
    default_prompt_name: str
    include_prompt: bool
    max_tokens: int
    vocabulary_size: int
    dtype: str
    device: str
    attention: str
    linear: str
    fingerprint: str
    special_tokens: Mapping[str, int]
    notice: str
    tasks: tuple[str, ...]
    multi_vector_head: bool
    sparse_head: str
    averages_late_interaction: bool
    labels: tuple[str, ...]
    activation: str
    pair_template: str
    instructed_pair_template: str
    weight_bytes: int
    late_interaction: LateInteraction | None
    normalizes_multi_vectors: bool
    max_sim: str
    truncation_side: str
    aliases: tuple[str, ...]


ENUMS: dict[str, Any] = {
    "outputs": vectors_pb2.OutputKind,
    "methods": vectors_pb2.ScoringMethod,
    "default_method": vectors_pb2.ScoringMethod,
    "tasks": model_pb2.Task,
    "activation": model_pb2.Activation,
    "query_expansion": model_pb2.QueryExpansion,
    "truncation_side": vectors_pb2.TruncationSide,
}
"""The enum of each field whose values are numbers of an enum."""
LISTS = {"outputs", "methods", "tasks", "labels", "allowed_dimensions", "skiplist", "aliases"}


def card_from_pb(message: Any) -> ModelCard:
    """The card of a `selvage.v1.ModelCard`."""
    return ModelCard(**{name: _value(message, name) for name in _names(ModelCard)})


def _names(kind: type[ModelCard | LateInteraction]) -> list[str]:
    return [field.name for field in fields(kind)]


def _value(message: Any, name: str) -> Any:
    """The value of one field."""
    value = getattr(message, name)
    if name == "late_interaction":
        if not message.HasField(name):
            return None
        return LateInteraction(**{inner: _value(value, inner) for inner in _names(LateInteraction)})
    if name in ENUMS:
        choices = [_choice(name, number) for number in (value if name in LISTS else [value])]
        return tuple(choices) if name in LISTS else choices[0]
    if name in ("prompts", "special_tokens"):
        return dict(value)
    return tuple(value) if name in LISTS else value


def _choice(field: str, number: int) -> str:
    """The name of a number in an enum's field; empty for 0, which means none."""
    return enums.name(ENUMS[field], number) if number else ""
