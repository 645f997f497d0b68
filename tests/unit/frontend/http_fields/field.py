"""A field of a request that another project defined, and what becomes of it here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


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
    """The request of one original on one path of ours: a body that is complete, and every field that it may have.

    `original`: the project and its struct; `source`: the page or file, with its version, that lists the fields;
    `card`: what differs in the card of the fake worker that answers (`fakes.card`), where an embedding model does not
    take the request.
    """

    original: str
    source: str
    path: str
    body: dict[str, Any]
    fields: tuple[Field, ...]
    card: Mapping[str, Any] = field(default_factory=dict)
