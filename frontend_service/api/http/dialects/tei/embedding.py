"""Bodies and replies of /embed, /embed_all, /embed_sparse and /similarity."""

from itertools import accumulate, pairwise
from typing import Annotated

import msgspec
import numpy as np

from frontend_service.api.field_names import FieldNames
from frontend_service.api.http.body import FILLED, Count, FilledInputs, inputs_of
from frontend_service.api.http.dialects.pooling_request import input_type_of
from frontend_service.api.http.dialects.tei.common import INPUTS, CuttableRequest, TruncatableBody, counted_reply
from frontend_service.api.http.reply import HttpReply, each_to_json, rows_of, split
from frontend_service.api.http.route import ParsedRequest
from frontend_service.domain.answer import Answer
from frontend_service.domain.requests import EmbedRequest, PromptChoice
from shared.errors import InvalidInput
from shared.vectors import OutputKind

SPARSE_WEIGHT = 32
"""Times that a byte of a sparse vector takes longer into JSON, an object for each entry, than to be copied."""


class EmbedBody(CuttableRequest, kw_only=True):
    """The body of POST /embed. `input_type` is a field of ours."""

    inputs: FilledInputs
    normalize: bool = True
    prompt_name: str | None = None
    input_type: str | None = None
    dimensions: Count | None = None


class EmbedAllBody(CuttableRequest, kw_only=True):
    """The body of POST /embed_all and /embed_sparse. `input_type` is a field of ours."""

    inputs: FilledInputs
    prompt_name: str | None = None
    input_type: str | None = None


class Sentences(msgspec.Struct):
    """Texts that POST /similarity compares."""

    source_sentence: str
    sentences: Annotated[list[str], FILLED]


class SimilarityParameters(TruncatableBody, kw_only=True):
    """Options of POST /similarity."""

    prompt_name: str | None = None


class SimilarityBody(msgspec.Struct, kw_only=True):
    """The body of POST /similarity."""

    inputs: Sentences
    parameters: SimilarityParameters | None = None
    model: str = ""


def names_of(body: EmbedBody | EmbedAllBody) -> FieldNames:
    """Our names in errors as this body has them: `inputs[3]`, or `inputs` for one text or its ids."""
    inputs = body.inputs
    alone = isinstance(inputs, str) or (bool(inputs) and isinstance(inputs[0], int))
    return {**INPUTS, "texts[]": "inputs", "tokenized[]": "inputs"} if alone else INPUTS


def embed_request(body: EmbedBody | EmbedAllBody, output: OutputKind) -> EmbedRequest:
    texts, tokenized = inputs_of(body.inputs, "inputs")
    _check_not_empty(texts)
    dimensions, normalize = None, False if output is OutputKind.MULTI_VECTOR else None
    if isinstance(body, EmbedBody):
        dimensions, normalize = body.dimensions, body.normalize
    return EmbedRequest(
        model=body.model,
        texts=texts,
        tokenized=tokenized,
        outputs=(output,),
        prompt=PromptChoice(name=body.prompt_name, input_type=input_type_of(body.input_type)),
        cut=body.cut,
        normalize=normalize,
        dimensions=dimensions,
    )


def _check_not_empty(texts: tuple[str, ...]) -> None:
    if "" in texts:
        place = texts.index("")
        raise InvalidInput(f"inputs[{place}] is empty", field=f"inputs[{place}]")


def dense_reply(_: ParsedRequest[EmbedBody, EmbedRequest], answer: Answer) -> HttpReply:
    return counted_reply(answer, each_to_json(rows_of(answer.result.dense)))


def all_reply(_: ParsedRequest[EmbedAllBody, EmbedRequest], answer: Answer) -> HttpReply:
    return counted_reply(answer, each_to_json(split(rows_of(answer.result.tokens), answer.result.row_lengths)))


def sparse_reply(_: ParsedRequest[EmbedAllBody, EmbedRequest], answer: Answer) -> HttpReply:
    rows = answer.result.sparse
    assert rows is not None
    indices = np.frombuffer(rows.indices, dtype="<i4")
    values = np.frombuffer(rows.values, dtype="<f4")  # numpy's numbers: as floats of Python they would have more digits
    bounds = pairwise(accumulate(rows.lengths, initial=0))
    vectors = (
        [{"index": index, "value": value} for index, value in zip(indices[start:stop], values[start:stop], strict=True)]
        for start, stop in bounds
    )
    return counted_reply(answer, each_to_json(vectors))


def similarity_names(body: SimilarityBody) -> FieldNames:
    """Our names in errors of /similarity, where the first text is the one that others are compared with."""
    sentences = {f"texts[{place + 1}]": f"inputs.sentences[{place}]" for place in range(len(body.inputs.sentences))}
    return {
        "texts": "inputs.sentences",
        "texts[0]": "inputs.source_sentence",
        **sentences,
        "prompt": "parameters.prompt_name",
        "prompt_name": "parameters.prompt_name",
    }


def similarity_request(body: SimilarityBody) -> EmbedRequest:
    if not body.inputs.sentences:
        raise InvalidInput("inputs.sentences is empty", field="inputs.sentences")
    parameters = body.parameters or SimilarityParameters()
    return EmbedRequest(
        model=body.model,
        texts=(body.inputs.source_sentence, *body.inputs.sentences),
        outputs=(OutputKind.DENSE,),
        prompt=PromptChoice(name=parameters.prompt_name),
        cut=parameters.cut,
        normalize=True,
    )


def similarity_reply(_: ParsedRequest[SimilarityBody, EmbedRequest], answer: Answer) -> HttpReply:
    rows = rows_of(answer.result.dense)
    return counted_reply(answer, rows[1:] @ rows[0])
