"""A field of a request that another project defined, and what becomes of it here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from shared.vectors import Activation, ScoringMethod, Task


class Fate(Enum):
    """The fate of an original's field on a path of ours."""

    HONOURED = "honoured"
    REFUSED = "refused"
    WITHOUT_MEANING = "without meaning here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of one path's request, in the original's spelling; `parameters.truncate` for a nested one.

    `value`: what the test sends, other than the default: an honoured field changes the reply or the job that the
    worker gets, a refused one is named by the error, and one without meaning changes neither. `beside`: further
    fields that this needs. `status`: of the reply where it is honoured by refusing. `why`: a reason that a reader of
    the table needs.
    """

    name: str
    fate: Fate
    value: Any
    beside: tuple[tuple[str, Any], ...] = ()
    status: int = 200
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The request of one original on paths of ours: a body that is complete, and every field that it may have.

    `original`: the project and its struct; `source`: the page or file, with its version, that lists the fields;
    `card`: what differs in the card of the fake worker that answers (`fakes.card`), where an embedding model does not
    take the request.
    """

    original: str
    source: str
    paths: tuple[str, ...]
    body: dict[str, Any]
    fields: tuple[Field, ...]
    card: Mapping[str, Any] = field(default_factory=dict)


def honoured(name: str, value: Any, why: str = "", *, status: int = 200, **beside: Any) -> Field:
    return Field(name=name, fate=Fate.HONOURED, value=value, why=why, status=status, beside=tuple(beside.items()))


def refused(name: str, value: Any, why: str = "") -> Field:
    return Field(name=name, fate=Fate.REFUSED, value=value, why=why)


def meaningless(name: str, value: Any, why: str) -> Field:
    return Field(name=name, fate=Fate.WITHOUT_MEANING, value=value, why=why)


EMBEDDINGS = ("/v1/embeddings", "/embeddings")
LONG = "a b c d e f g h i j k l"
"""A text over the limit of the fake model."""
CLASSIFIER: dict[str, object] = {"tasks": (Task.CLASSIFY,), "labels": ("no", "yes"), "activation": Activation.SOFTMAX}
CROSS_ENCODER: dict[str, object] = {
    "tasks": (Task.RERANK, Task.CLASSIFY),
    "labels": ("LABEL_0",),
    "methods": (ScoringMethod.CROSS_ENCODER,),
    "default_method": ScoringMethod.CROSS_ENCODER,
    "activation": Activation.SIGMOID,
}
IMAGES = "only texts are served, no images, audio or video"
MODEL = honoured("model", "another", "another model than the one served is 404")
PRIORITY = refused("priority", 5, "the header selvage-priority does it; 0 is accepted")
USER = meaningless("user", "somebody", "nobody is watched; selvage-key is for shares")
