"""OpenAI's embeddings, with what vLLM, Jina, NVIDIA and Voyage add: /v1/embeddings, /embeddings. Jina's
/v1/multi-vector. And the list of models: /v1/models, and /models as llama.cpp has it too.

Source: platform.openai.com/docs/api-reference; api.jina.ai/openapi.json; docs.nvidia.com/nim, API reference of the
embedding NIM, 2.2; docs.voyageai.com/reference/embeddings-api; `max_model_len` is vLLM's; other fields: see
`vllm_fields`.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np

from frontend_service.api.http.error_replies import OPENAI
from frontend_service.api.http.fields import LARGEST, Body, Count, Id, inputs_of, of_one_kind, refusing
from frontend_service.api.http.routes import (
    FLOAT_WEIGHT,
    Encoding,
    Floats,
    Fragments,
    HttpCall,
    HttpReply,
    OutputDtype,
    Route,
    now,
    rows_of,
    split,
    to_json,
    with_list,
)
from frontend_service.api.http.vllm_fields import (
    INPUT_TYPES,
    NO_IMAGES,
    TRUNCATE,
    PoolingRequest,
    VectorRequest,
    agreed,
)
from frontend_service.domain.requests import EmbedRequest, FieldNames, PromptChoice, SpanPooling, Truncation
from frontend_service.services.pipeline import Answer
from shared.card import ModelCard
from shared.errors import InvalidInput
from shared.vectors import InputType, OutputKind, TokenPooling, TruncationSide

CUTS: dict[Any, tuple[bool | None, TruncationSide | None]] = {
    None: (None, None),
    True: (True, None),
    False: (False, None),
    "NONE": (False, None),
    "START": (True, TruncationSide.LEFT),
    "END": (True, TruncationSide.RIGHT),
}
"""Whether and on which side a text is cut, by the values of `truncate` and `truncation`."""


_TEXT_OBJECT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


class InputObject(msgspec.Struct):
    """A text as an object, as Jina's models of texts and images take it."""

    text: str | None = None
    image: Any = None
    url: Any = None
    bytes: Any = None
    pdf: Any = None
    audio: Any = None
    video: Any = None

    def text_at(self, place: str) -> str:
        """The text of the entry `place`. Raises InvalidInput for any other content, and where there is none."""
        for name in self.__struct_fields__:
            if name != "text" and getattr(self, name) is not None:
                raise InvalidInput(f"{place}.{name} is refused: only texts are read", field=f"{place}.{name}")
        if self.text is None:
            raise InvalidInput(f"{place}.text is missing", field=f"{place}.text")
        return self.text


HostedInputs = Annotated[
    str | InputObject | list[str | Id | list[Id] | InputObject],
    of_one_kind({"anyOf": [{"type": "string"}, _TEXT_OBJECT]}),
]


class HostedRequest(VectorRequest, kw_only=True):
    """Inputs to embed, whose input type is in `input_type` or `task`."""

    ACTIVATIONS: ClassVar[tuple[str, ...]] = (*VectorRequest.ACTIVATIONS, "normalized")

    input: HostedInputs  # type: ignore[assignment]
    truncate: bool | Literal["NONE", "START", "END"] | None = None
    task: str | None = None
    normalized: bool | None = None
    embedding_type: Annotated[
        Literal["float", "base64"] | None, msgspec.Meta(description='"float" or "base64", as encoding_format.')
    ] = None
    late_chunking: Annotated[Any, refusing("/v1/embeddings gives each chunk a vector", False)] = None
    return_multivector: Annotated[Any, refusing("/v1/multi-vector gives a vector for each token", False)] = None
    return_tokenized_input: Annotated[Any, refusing("/v1/multi-vector has return_token_ids", False)] = None
    output_dimension: Count | None = None
    output_dtype: Annotated[
        OutputDtype | None,
        msgspec.Meta(description="binary, ubinary: a bit a number, eight in an integer of -128 to 127, or 0 to 255."),
    ] = None
    truncation: bool | None = None
    modality: Annotated[Any, refusing(NO_IMAGES, "text")] = None

    @property
    def plain_input(self) -> Any:
        """The input with each object as its text."""
        if isinstance(self.input, InputObject):
            return self.input.text_at("input")
        if isinstance(self.input, str):
            return self.input
        return [
            entry.text_at(f"input[{place}]") if isinstance(entry, InputObject) else entry
            for place, entry in enumerate(self.input)
        ]

    @property
    def choice(self) -> PromptChoice:
        """The prompt that goes before each text. Raises InvalidInput where `input_type` and `task` disagree."""
        choice = super().choice
        if self.task is None:
            return choice
        input_type = INPUT_TYPES.get(re.split("[._]", self.task)[-1], InputType.UNSPECIFIED)
        if not input_type:  # the task says nothing of that, as text-matching does not
            return replace(choice, task=self.task)
        if self.input_type is not None and input_type is not choice.input_type:
            raise InvalidInput("input_type and task disagree about what the texts are", field="task")
        return replace(choice, input_type=input_type, task=self.task)

    @property
    def cut(self) -> Truncation:
        """The truncation that any of three fields asks for. Raises InvalidInput where they disagree."""
        cut, first = super().cut, TRUNCATE
        for name in ("truncate", "truncation"):
            if (value := getattr(self, name)) is None:
                continue
            truncate, side = CUTS[value]
            if cut.truncate is not None and cut.truncate is not truncate:
                raise InvalidInput(f"{first} and {name} disagree about whether texts are cut", field=name)
            cut, first = replace(cut, truncate=truncate, side=side or cut.side), name
        return cut

    @property
    def width(self) -> int | None:
        """The dimensions by either name."""
        width: int | None = agreed(self, "dimensions", "output_dimension")
        return width

    @property
    def encoding(self) -> Encoding:
        """The encoding: base64 where either of two fields says so, whose default is `float`. Raises InvalidInput."""
        encoding = super().encoding
        if self.embedding_type == "base64":
            encoding = replace(encoding, format="base64")
        kind = self.output_dtype or "float"
        if kind != "float" and encoding.dtype != "float32":
            raise InvalidInput(f"output_dtype is {kind}, which embed_dtype contradicts", field="output_dtype")
        return replace(encoding, output_dtype=kind)

    @property
    def names(self) -> FieldNames:
        """Our names in errors as this body has them."""
        renamed = {"dimensions": "output_dimension"} if self.output_dimension is not None else {}
        return {**super().names, **renamed}


Overlap = Annotated[
    int,
    msgspec.Meta(
        ge=0,
        le=LARGEST,
        description="With late_chunking or spans: documents over the model's limit are read in windows that share so "
        "many tokens.",
    ),
]


class EmbeddingsBody(HostedRequest, kw_only=True):
    """The body of POST /v1/embeddings. `spans` and `window_overlap` are fields of ours."""

    late_chunking: Annotated[
        bool | None,
        msgspec.Meta(description="The inputs are consecutive chunks of one document, which is read as a whole."),
    ] = None
    spans: Annotated[
        list[list[tuple[int, int]]] | None,
        msgspec.Meta(
            description="For each input, spans of it: the first character and the one behind the last, counted in "
            "Unicode code points. Each span gets a vector, and the inputs get none."
        ),
    ] = None
    window_overlap: Overlap | None = None

    @property
    def span_pooling(self) -> SpanPooling | None:
        """The spans to pool. Raises InvalidInput where fields exclude each other."""
        overlap = self.window_overlap
        if self.spans:
            if self.late_chunking:
                raise InvalidInput("late_chunking and spans are both given; at most one may be", field="spans")
            return SpanPooling(spans=tuple(map(tuple, self.spans)), window_overlap=overlap)
        if self.late_chunking:
            return SpanPooling(window_overlap=overlap)
        if overlap is not None:
            raise InvalidInput("window_overlap needs late_chunking or spans", field="window_overlap")
        return None


class MultiVectorBody(HostedRequest, kw_only=True):
    """The body of POST /v1/multi-vector: a vector for each token of a late-interaction model. `return_token_ids` and
    `pool_factor` are fields of ours."""

    return_token_ids: bool = False
    pool_factor: Annotated[
        float | None,
        msgspec.Meta(
            description="The token vectors of a document become so many times fewer; 1: none becomes another."
        ),
    ] = None


def embed_request(body: VectorRequest, output: OutputKind) -> EmbedRequest:
    """The request for one output of each input. Raises InvalidInput."""
    texts, tokenized = inputs_of(body.plain_input, "input")
    return EmbedRequest(
        model=body.model,
        texts=texts,
        tokenized=tokenized,
        prompt=body.choice,
        cut=body.cut,
        outputs=(output,),
        dimensions=body.width,
        normalize=body.activated,
    )


def multi_vector_request(body: MultiVectorBody) -> EmbedRequest:
    """The request for a vector of each token, or of fewer. Raises InvalidInput."""
    pooling = None if body.pool_factor is None else TokenPooling(pool_factor=body.pool_factor)
    return replace(
        embed_request(body, OutputKind.MULTI_VECTOR), return_token_ids=body.return_token_ids, pooling=pooling
    )


def embeddings_request(body: EmbeddingsBody) -> EmbedRequest:
    """The request for a vector of each input, each chunk or each span. Raises InvalidInput."""
    return replace(embed_request(body, OutputKind.DENSE), span_pooling=body.span_pooling)


def usage(tokens: int) -> dict[str, int]:
    """The `usage` of a reply: tokens that were computed."""
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def list_reply(
    body: PoolingRequest, request_id: str, prefix: str, answer: Answer, data: Sequence[Fragments]
) -> HttpReply:
    """A reply with a list of data, as all of OpenAI's are. Its id is that of the body, or else that of the call."""
    fields = {
        "id": f"{prefix}-{body.request_id or request_id}",
        "created": now(),
        "model": answer.model,
        "usage": usage(answer.tokens.total),
        "object": "list",
    }
    return HttpReply(body=with_list(fields, "data", data))


def vector_list_reply(
    body: VectorRequest, request_id: str, prefix: str, answer: Answer, arrays: list[Floats], kind: str, field: str
) -> HttpReply:
    """A reply of arrays in the encoding of the request. `kind`: names an array; `field`: names its numbers."""
    encoding = body.encoding
    data = [encoding.to_json({"object": kind, "index": index}, field, array) for index, array in enumerate(arrays)]
    return list_reply(body, request_id, prefix, answer, data)


def embeddings_reply(body: EmbeddingsBody, request_id: str, answer: Answer) -> HttpReply:
    rows = list(rows_of(answer.result.dense))
    return vector_list_reply(body, request_id, "embd", answer, rows, "embedding", "embedding")


def multi_vector_reply(body: MultiVectorBody, request_id: str, answer: Answer) -> HttpReply:
    rows, encoding = split(rows_of(answer.result.tokens), answer.result.row_lengths), body.encoding
    about: list[dict[str, Any]] = [{"object": "embeddings", "index": index} for index in range(len(rows))]
    if encoding.format == "base64":
        for fields, array in zip(about, rows, strict=True):
            fields["shape"] = array.shape
    if body.return_token_ids:
        ids = split(np.frombuffer(answer.result.token_ids, dtype="<i4"), answer.result.row_lengths)
        for fields, text_ids in zip(about, ids, strict=True):
            fields["token_ids"] = text_ids
    data = [encoding.to_json(fields, "embeddings", array) for fields, array in zip(about, rows, strict=True)]
    return list_reply(body, request_id, "mvec", answer, data)


EMBEDDINGS, MULTI_VECTOR = Body(EmbeddingsBody), Body(MultiVectorBody)


async def embeddings(call: HttpCall) -> HttpReply:
    """Answers POST /v1/embeddings: a vector of each input, each chunk or each span."""
    body = await call.read(EMBEDDINGS)
    answer = await call.ask(call.frontend.embedding.embed, embeddings_request, body, lambda: body.names)
    write = partial(embeddings_reply, body, call.caller.request_id, answer)
    return await call.reply(answer, FLOAT_WEIGHT * answer.size, write)


async def multi_vector(call: HttpCall) -> HttpReply:
    """Answers POST /v1/multi-vector: a vector of each token."""
    body = await call.read(MULTI_VECTOR)
    answer = await call.ask(call.frontend.embedding.embed, multi_vector_request, body, lambda: body.names)
    write = partial(multi_vector_reply, body, call.caller.request_id, answer)
    return await call.reply(answer, FLOAT_WEIGHT * answer.size, write)


MODEL_EXAMPLE = {"id": "all-MiniLM-L6-v2", "object": "model", "max_model_len": 256}
STARTED = now()
"""The creation time of all models in replies, since the real one is unknown."""


def model_entry(card: ModelCard, name: str) -> dict[str, Any]:
    """A model under one of its names, with OpenAI's fields, vLLM's, and some of our card.

    Several names of a model have the same `root`, as in vLLM.
    """
    return {
        "id": name,
        "object": "model",
        "created": STARTED,
        "owned_by": "selvage",
        "root": card.id,
        "parent": None,
        "max_model_len": card.max_tokens,
        "tasks": [task.name.lower() for task in card.tasks],
        "outputs": [output.name.lower() for output in card.outputs],
        "dimensions": card.dimensions or card.multi_vector_dimensions,
        "fingerprint": card.fingerprint,
        "task_models": card.task_models,
    }


async def list_models(call: HttpCall) -> HttpReply:
    """Answers GET /v1/models: all models, under each of their names."""
    entries = [model_entry(card, name) for card in call.frontend.models.cards() for name in card.names]
    return HttpReply(body=to_json({"object": "list", "data": entries}))


async def get_model(call: HttpCall) -> HttpReply:
    """Answers GET /v1/models/NAME."""
    return HttpReply(body=to_json(model_entry(call.frontend.models.get(call.path_end).card, call.path_end)))


ROUTES = (
    *(
        Route(
            method="POST",
            path=path,
            dialect=OPENAI,
            summary="A vector for each input",
            body_type=EmbeddingsBody,
            example={
                "object": "list",
                "model": "all-MiniLM-L6-v2",
                "data": [{"object": "embedding", "index": 0, "embedding": [0.1, -0.2]}],
                "usage": {"prompt_tokens": 4, "total_tokens": 4},
            },
            endpoint=embeddings,
        )
        for path in ("/v1/embeddings", "/embeddings")
    ),
    Route(
        method="POST",
        path="/v1/multi-vector",
        dialect=OPENAI,
        summary="A vector for each token of each input, of a late-interaction model",
        body_type=MultiVectorBody,
        example={"object": "list", "data": [{"object": "embeddings", "index": 0, "embeddings": [[0.1], [0.2]]}]},
        endpoint=multi_vector,
    ),
    *(
        Route(
            method="GET",
            path=prefix + path,
            dialect=OPENAI,
            summary=summary,
            example=example,
            needs_worker=False,
            endpoint=endpoint,
        )
        for prefix in ("/v1", "")
        for path, endpoint, summary, example in (
            ("/models", list_models, "The models that are served", {"object": "list", "data": [MODEL_EXAMPLE]}),
            ("/models/", get_model, "One of them", MODEL_EXAMPLE),
        )
    ),
)
