"""Routes over HTTP: calls whose bodies have arrived, the endpoints that answer them, and their replies.

Replies are JSON by orjson, which writes numpy arrays directly from memory, and vectors are numbers or base64. Source of
the encodings: vLLM's vllm/entrypoints/pooling/utils.py and vllm/utils/serial_utils.py.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from itertools import accumulate, pairwise
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from frontend_service import postprocess
from frontend_service.api.http.fields import Body
from frontend_service.domain.requests import FieldNames, field_as
from frontend_service.frontend import Frontend
from frontend_service.services.pipeline import Answer, Timing
from shared.caller import TERMS, Caller, RequestTerms
from shared.errors import SelvageError
from shared.jobs import Rows
from shared.packing import pack
from shared.vectors import DataType

JSON = "application/json"
HTML = "text/html; charset=utf-8"
FLOAT_WEIGHT = 16
"""Times that a byte of a vector takes longer into JSON than to be copied."""

A = TypeVar("A")
B = TypeVar("B", bound=msgspec.Struct)
Q = TypeVar("Q")
T = TypeVar("T")
Floats = NDArray[np.float32]
Fragments = tuple[bytes, ...]
"""An object as JSON, in pieces that belong end to end: megabytes of base64 are copied once, into the reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """A whole reply. `headers`: those beside the ones that every reply has."""

    body: bytes = b""
    status: int = 200
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCall:
    """A call whose body has arrived. `path_end`: the end of its path, where the route serves all paths below."""

    frontend: Frontend
    caller: Caller
    body: bytes = b""
    path_end: str = ""

    async def read(self, body: Body[B]) -> B:
        """Reads the body, in a thread where it is large. Raises InvalidInput, LimitExceeded."""
        return await self.convert(body.read, self.body)

    async def convert(self, convert: Callable[[Q], T], content: Q) -> T:
        """Makes a request of what was read, in a thread where the body is large. Raises what `convert` raises."""
        return await self.frontend.pipeline.offload(len(self.body), convert, content)

    async def ask(
        self,
        serve: Callable[[Q, RequestTerms], Awaitable[A]],
        read: Callable[[B], Q],
        body: B,
        names: Callable[[], FieldNames],
    ) -> A:
        """Makes a request of the body, in a thread where that is large, and has a service answer it.

        Errors name fields as the API does, by `names`; they are copies, since other requests may share the original.
        """
        try:
            return await serve(await self.convert(read, body), TERMS.get())
        except SelvageError as error:
            renamed = copy(error)
            renamed.field = field_as(error.field, names())
            raise renamed from error

    async def reply(self, answer: Answer, size: int, write: Callable[[], HttpReply]) -> HttpReply:
        """Writes the reply in the time of copying `size` bytes; the header `server-timing` has its times."""
        reply, timing = await self.frontend.pipeline.reply(answer, size, write)
        headers = (*reply.headers, ("server-timing", _server_timing(timing)))
        return HttpReply(body=reply.body, content_type=reply.content_type, headers=headers)


def _server_timing(timing: Timing) -> str:
    """Times in milliseconds, as the header `server-timing` has them."""
    return ", ".join([f"{name};dur={1e3 * getattr(timing, name):.2f}" for name in TIMES])


TIMES = tuple(time_field.name for time_field in fields(Timing))
Endpoint = Callable[[HttpCall], Awaitable[HttpReply]]
"""The function that answers calls of a route. It raises SelvageError."""


@dataclass(frozen=True, slots=True)
class ErrorDialect:
    """The form of errors that a family of clients knows; `error_replies.py` has all of them.

    `name`: its name in the OpenAPI document; `status`: gives the status of an error; `body`: makes a body of an error,
    its status, message and field; `schema`: that of the body; `more_statuses`: statuses that only this dialect has.
    """

    name: str
    status: Callable[[SelvageError], int]
    body: Callable[[SelvageError, int, str, str], Any]
    schema: Mapping[str, Any]
    more_statuses: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A method and a path with the endpoint that serves them. A path that ends with / stands for all paths below it.

    `body_type`: the struct in the body, None for no body; `other_body_types`: structs that may be there instead;
    `example`: a reply, for the documentation; `content_type`: that of replies; `needs_worker`: whether a worker is
    asked; `is_open`: whether no API key is needed; `is_admitted`: whether calls count as requests for admission.
    """

    method: str
    path: str
    endpoint: Endpoint
    dialect: ErrorDialect
    summary: str
    body_type: Any = None
    other_body_types: tuple[Any, ...] = ()
    example: Any = None
    content_type: str = JSON
    needs_worker: bool = True
    is_open: bool = False
    is_admitted: bool = True

    @property
    def name(self) -> str:
        """The route's name in logs and metrics."""
        return f"{self.method} {self.path}"

    @property
    def is_prefix(self) -> bool:
        """The route serves all paths below its own."""
        return self.path.endswith("/") and self.path != "/"


def to_json(content: Any) -> bytes:
    """Writes content as JSON. NaN and infinity, which JSON does not have, become null."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def entries_to_json(entries: Iterable[Any]) -> list[orjson.Fragment]:
    """Writes each entry of a list by itself, so that other threads can run in between."""
    return [orjson.Fragment(to_json(entry)) for entry in entries]


def entries_in_fragments(entries: Iterable[Any]) -> list[Fragments]:
    """Writes each entry of a list by itself, for `with_list`."""
    return [(to_json(entry),) for entry in entries]


def with_base64(fields: Mapping[str, Any], name: str, data: Any) -> Fragments:
    """Writes an object of `fields`, one at least, and of a string with a plain `name`, the base64 of bytes."""
    return to_json(fields)[:-1], b',"%b":"' % name.encode(), pybase64.b64encode(data), b'"}'


def with_list(fields: Mapping[str, Any], name: str, entries: Sequence[Fragments]) -> bytes:
    """Writes an object of `fields`, one at least, and of a list with a plain `name` of written entries."""
    separated = [fragment for entry in entries for fragment in (b",", *entry)][1:]
    return b"".join([to_json(fields)[:-1], b',"%b":[' % name.encode(), *separated, b"]}"])


def now() -> int:
    """The time in whole seconds since 1970."""
    return int(time.time())


def rows_of(rows: Rows | None) -> Floats:
    """Rows as an array, float32 [N, D]."""
    assert rows is not None
    return postprocess.unpack_float32(rows)


def split(rows: Floats, lengths: Sequence[int]) -> list[Floats]:
    """Splits rows [T, D] into those of each text [its length, D]."""
    return [rows[start:stop] for start, stop in pairwise(accumulate(lengths, initial=0))]


def base64_of(array: Any) -> str:
    """Base64 of an array's bytes: little-endian, one row after the other."""
    return pybase64.b64encode_as_string(array)


Format = Literal["float", "base64"]
EmbedDtype = Literal["float32", "float16", "bfloat16"]
DATA_TYPES: dict[EmbedDtype, DataType] = {
    "float32": DataType.FLOAT32,
    "float16": DataType.FLOAT16,
    "bfloat16": DataType.BFLOAT16,
}
OutputDtype = Literal["float", "binary", "ubinary"]


def bits_of(rows: Floats) -> Any:
    """Quantizes rows to uint8 [N, ceil(D / 8)], a bit a number: set where it is not negative, the first one highest."""
    return np.frombuffer(pack(rows, DataType.BINARY).data, dtype=np.uint8).reshape(len(rows), -1)


BITS: dict[str, Callable[[Floats], Any]] = {
    "binary": lambda rows: (bits_of(rows).astype(np.int16) - 128).astype(np.int8),
    "ubinary": bits_of,
}
"""Quantizations of rows to a bit a number, by the names that Cohere and Voyage have for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """The encoding of a reply's vectors: numbers, or base64 of little-endian numbers of `dtype`.

    `output_dtype`: the numbers themselves, or their bits.
    """

    format: Format
    dtype: EmbedDtype
    output_dtype: OutputDtype = "float"

    def to_bytes(self, array: Floats) -> bytes | memoryview:
        """float32 [..., D] as bytes, one number after the other. What has them in memory already is not copied."""
        data_type = DATA_TYPES[self.dtype]
        if data_type is DataType.FLOAT32:
            return np.ascontiguousarray(array, dtype="<f4").reshape(-1).data.cast("B")
        return bytes(pack(array.reshape(1, -1), data_type).data)

    def to_json(self, fields: Mapping[str, Any], name: str, array: Floats) -> Fragments:
        """An object of `fields` and of an array `name`: numbers, or a string of base64."""
        bits = None
        if self.output_dtype != "float":
            bits = BITS[self.output_dtype](array.reshape(-1, array.shape[-1])).reshape(*array.shape[:-1], -1)
        if self.format == "float":
            return (to_json({**fields, name: array if bits is None else bits}),)
        return with_base64(fields, name, self.to_bytes(array) if bits is None else bits.tobytes())
