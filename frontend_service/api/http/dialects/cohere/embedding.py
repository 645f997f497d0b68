"""Vectors of `texts` or `inputs`, in several types at once.

Source: docs.cohere.com/reference/embed, versions 1 and 2.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from frontend_service import postprocess
from frontend_service.api.http.body import FILLED, Body, Bound, Count
from frontend_service.api.http.dialects.encoding import BITS
from frontend_service.api.http.dialects.pooling_request import NO_IMAGES, input_type_of
from frontend_service.api.http.refused_fields import refusing
from frontend_service.api.http.reply import FLOAT_WEIGHT, Floats, HttpReply, base64_of, rows_of, to_json
from frontend_service.api.http.route import Endpoint, ExchangeEndpoint, ParsedRequest
from frontend_service.api.renaming import Names
from frontend_service.application.frontend import Frontend
from frontend_service.domain.answer import Answer
from frontend_service.domain.requests import EmbedRequest, PromptChoice, Truncation
from shared.errors import InvalidInput, clip
from shared.vectors import DataType, OutputKind, TruncationSide

EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
NAMES: Names = (
    ("ask for fewer texts.*", "ask for fewer texts or a smaller output_dimension"),
    (r"\bdimensions\b", "output_dimension"),
    (r"\btruncate would", 'truncate "END" would'),
)


class ContentPart(msgspec.Struct):
    """A part of an input, which must be a text."""

    text: str | None = None
    type: str = "text"


class Input(msgspec.Struct):
    """A text as it stands beside images; there is no model of those."""

    content: Annotated[list[ContentPart], FILLED]


class CohereEmbedBody(msgspec.Struct, kw_only=True):
    """The body of POST /v1/embed and /v2/embed: either `texts` or `inputs` has some."""

    texts: list[str] | None = None
    inputs: list[Input] | None = None
    model: str = ""
    input_type: str | None = None
    embedding_types: Annotated[list[EmbeddingType], FILLED] | None = None
    output_dimension: Count | None = None
    truncate: Literal["NONE", "START", "END"] = "END"
    max_tokens: Bound | None = None
    images: Annotated[Any, refusing(NO_IMAGES, [])] = None
    priority: Annotated[Any, refusing("the header selvage-priority tells how urgent a request is", 0)] = None


TRUNCATIONS = {
    "NONE": (False, None),
    "START": (True, TruncationSide.LEFT),
    "END": (True, TruncationSide.RIGHT),
}
"""Whether and on which side a text is cut, by the values of `truncate`."""


def embed_request(body: CohereEmbedBody) -> EmbedRequest:
    if body.texts and body.inputs:
        raise InvalidInput("texts and inputs are both there", field="inputs")
    texts = tuple(body.texts or ()) or tuple(_text(entry, place) for place, entry in enumerate(body.inputs or ()))
    if not texts:
        lists = [name for name in ("texts", "inputs") if getattr(body, name) is not None]
        field, fault = (lists[0], "empty") if lists else ("texts", "missing")
        raise InvalidInput(f"{field} is {fault}", field=field)
    if body.embedding_types is not None and not body.embedding_types:
        raise InvalidInput("embedding_types is empty", field="embedding_types")
    truncate, side = TRUNCATIONS[body.truncate]
    return EmbedRequest(
        model=body.model,
        texts=texts,
        prompt=PromptChoice(input_type=input_type_of(body.input_type)),
        cut=Truncation(truncate=truncate, side=side, max_tokens=body.max_tokens, bound=True),
        outputs=(OutputKind.DENSE,),
        dimensions=body.output_dimension,
        normalize=True,
    )


def _text(entry: Input, place: int) -> str:
    """The text of an entry of `inputs`. Raises InvalidInput for any other content."""
    name = f"inputs[{place}].content"
    if len(entry.content) != 1:
        raise InvalidInput(f"{name} has {len(entry.content)} parts, must have 1: a text", field=name)
    (part,) = entry.content
    if part.type != "text":
        raise InvalidInput(f"{name}[0].type is {clip(part.type)}: {NO_IMAGES}", field=f"{name}[0].type")
    if part.text is None:
        raise InvalidInput(f"{name}[0].text is missing", field=f"{name}[0].text")
    return part.text


def names_of(body: CohereEmbedBody) -> Names:
    """Our names in errors as this body has them: a text of `inputs` is nested deeper than one of `texts`."""
    return NAMES if body.texts else ((r"\btexts\[(\d+)\]", r"inputs[\1].content[0].text"), *NAMES)


def int8_of(rows: Floats) -> Any:
    """Quantizes rows to int8 [N, D], each by its own scale, which does not change cosines."""
    return np.frombuffer(postprocess.pack(rows, DataType.INT8).data, dtype=np.int8).reshape(rows.shape)


CONVERSIONS: dict[str, Callable[[Floats], Any]] = {
    "float": lambda rows: rows,
    "int8": int8_of,
    "uint8": lambda rows: (int8_of(rows).astype(np.int16) + 128).astype(np.uint8),
    **BITS,
    "base64": lambda rows: [base64_of(row) for row in rows],
}


def embed_reply(parsed: ParsedRequest[CohereEmbedBody, EmbedRequest], answer: Answer, version: str) -> HttpReply:
    """`version`: that of Cohere's API. Without `embedding_types` version 1 has plain lists, version 2 has `float`."""
    rows, types = rows_of(answer.result.dense), parsed.body.embedding_types
    plain = types is None and version == "1"
    return HttpReply(
        body=to_json(
            {
                "id": parsed.request_id,
                "embeddings": rows
                if plain
                else {name: CONVERSIONS[name](rows) for name in dict.fromkeys(types or ["float"])},
                "texts": parsed.request.texts,
                "response_type": "embeddings_floats" if plain else "embeddings_by_type",
                "meta": {
                    "api_version": {"version": version},
                    "billed_units": {"input_tokens": answer.tokens.total},
                },
            }
        )
    )


def embed_endpoint(frontend: Frontend, version: str) -> Endpoint:
    """Makes the endpoint of one version of Cohere's API."""
    return ExchangeEndpoint(
        frontend,
        Body(CohereEmbedBody),
        embed_request,
        frontend.embedding.embed,
        lambda parsed, answer: embed_reply(parsed, answer, version),
        FLOAT_WEIGHT,
        names_of,
    )
