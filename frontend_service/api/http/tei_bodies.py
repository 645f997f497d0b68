"""Bodies and replies of text-embeddings-inference. `tei.py` has the paths."""

from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from frontend_service.api.http.fields import FILLED, Bound, Count, FilledInputs, Top, inputs_of
from frontend_service.api.http.routes import HttpReply, entries_to_json, rows_of, split, to_json
from frontend_service.api.http.vllm_fields import TRUNCATION_SIDES, input_type_of
from frontend_service.api.tei_v1.messages import info_response_to_pb
from frontend_service.domain.limits import Limits
from frontend_service.domain.requests import (
    ClassifyRequest,
    EmbedRequest,
    FieldNames,
    PromptChoice,
    RerankRequest,
    ScoreNormalization,
    Truncation,
)
from frontend_service.services.classify import Classified
from frontend_service.services.pipeline import Answer, ServedModel
from frontend_service.services.rank import Reranked
from shared.card import ModelCard
from shared.errors import InvalidInput
from shared.vectors import OutputKind, ScoringMethod, Task

OPTIONS: FieldNames = {"truncation_side": "truncation_direction"}
"""Our names of options in errors, on all paths."""
INPUTS: FieldNames = {**OPTIONS, "texts": "inputs", "tokenized": "inputs"}
"""Our names in errors, on paths where texts are `inputs`."""


class TruncatableBody(msgspec.Struct, kw_only=True):
    """Fields about the truncation of long texts."""

    truncate: bool | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] = "right"

    @property
    def cut(self) -> Truncation:
        """The truncation that these fields ask for."""
        return Truncation(truncate=self.truncate, side=TRUNCATION_SIDES[self.truncation_direction.lower()])


class CuttableRequest(TruncatableBody, kw_only=True):
    """A body whose texts may be truncated. `model` counts only where several models are served."""

    model: str = ""


def counted_reply(answer: Answer, content: Any) -> HttpReply:
    """A reply with the header that the load scripts of text-embeddings-inference read."""
    return HttpReply(body=to_json(content), headers=(("x-compute-tokens", str(answer.tokens.total)),))


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


def embed_names(body: EmbedBody | EmbedAllBody) -> FieldNames:
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


def dense_reply(answer: Answer) -> HttpReply:
    return counted_reply(answer, entries_to_json(rows_of(answer.result.dense)))


def all_reply(answer: Answer) -> HttpReply:
    return counted_reply(answer, entries_to_json(split(rows_of(answer.result.tokens), answer.result.row_lengths)))


def sparse_reply(answer: Answer) -> HttpReply:
    rows = answer.result.sparse
    assert rows is not None
    indices = np.frombuffer(rows.indices, dtype="<i4")
    values = np.frombuffer(rows.values, dtype="<f4")  # numpy's numbers: as floats of Python they would have more digits
    bounds = pairwise(accumulate(rows.lengths, initial=0))
    vectors = (
        [{"index": index, "value": value} for index, value in zip(indices[start:stop], values[start:stop], strict=True)]
        for start, stop in bounds
    )
    return counted_reply(answer, entries_to_json(vectors))


def similarity_names(body: SimilarityBody) -> FieldNames:
    """Our names in errors of /similarity, where the first text is the one that others are compared with."""
    sentences = {f"texts[{place + 1}]": f"inputs.sentences[{place}]" for place in range(len(body.inputs.sentences))}
    return {
        "texts": "inputs.sentences",
        "texts[0]": "inputs.source_sentence",
        **sentences,
        "prompt": "parameters.prompt_name",
        "prompt_name": "parameters.prompt_name",
        "truncation_side": "parameters.truncation_direction",
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


def similarity_reply(answer: Answer) -> HttpReply:
    rows = rows_of(answer.result.dense)
    return counted_reply(answer, rows[1:] @ rows[0])


def info_reply(model: ServedModel, limits: Limits, requests: int, threads: int) -> dict[str, Any]:
    """The model that is served and its limits. `requests`: most at once; `threads`: how many tokenise."""
    card, grpc_info = model.card, info_response_to_pb(model, limits, requests, threads)
    return {
        "model_id": card.id,
        "model_sha": None,
        "model_dtype": card.dtype,
        "model_type": _model_type(card),
        "max_concurrent_requests": grpc_info.max_concurrent_requests,
        "max_input_length": grpc_info.max_input_length,
        "max_batch_tokens": grpc_info.max_batch_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": grpc_info.max_client_batch_size,
        "auto_truncate": limits.auto_truncate,
        "tokenization_workers": threads,
        "version": grpc_info.version,
        "sha": None,
        "docker_label": None,
    }


def _model_type(card: ModelCard) -> dict[str, Any]:
    labels = {
        "id2label": {str(number): label for number, label in enumerate(card.labels)},
        "label2id": {label: number for number, label in enumerate(card.labels)},
    }
    if {ScoringMethod.CROSS_ENCODER, ScoringMethod.LISTWISE} & {*card.methods}:
        return {"reranker": labels}
    if Task.CLASSIFY in card.tasks:
        return {"classifier": labels}
    return {"embedding": {"pooling": card.pooling}}


class LabelParameters(msgspec.Struct):
    """Parameters with which huggingface_hub asks for labels."""

    top_k: Bound | None = None
    function_to_apply: Literal["none"] | None = None


class PredictBody(CuttableRequest, kw_only=True):
    """The body of POST /predict.

    With `parameters`, as huggingface_hub sends them, the reply is always a list of lists.
    """

    inputs: Annotated[
        str | Annotated[list[str | Annotated[list[str], FILLED]], FILLED],
        msgspec.Meta(description="A text, a list of one text or two, or a list of such lists."),
    ]
    raw_scores: bool = False
    parameters: LabelParameters | None = None


def predict_names(body: PredictBody) -> FieldNames:
    """Our names in errors as this body has them: for a single text, a pair, or a list of texts and pairs."""
    inputs, places = body.inputs, {"texts[]": "inputs[][0]", "text_pairs[]": "inputs[][1]"}
    if isinstance(inputs, str):
        places = {"texts[]": "inputs"}
    elif all(isinstance(text, str) for text in inputs):
        places = {"texts[]": "inputs[0]", "text_pairs[]": "inputs[1]"}
    return {**OPTIONS, "texts": "inputs", "text_pairs": "inputs", **places}


def predict_request(body: PredictBody) -> ClassifyRequest:
    """The request for labels of texts or of pairs. Raises InvalidInput."""
    batch = _batch(body.inputs)
    if not batch:
        raise InvalidInput("inputs is empty", field="inputs")
    count = len(next(iter(batch.values())))
    for place, texts in batch.items():
        if len(texts) not in (1, 2):
            raise InvalidInput(f"{place} has {len(texts)} entries, must have 1 or 2", field=place)
        if len(texts) != count:
            raise InvalidInput(f"{place} has {len(texts)} entries, inputs[0] has {count}: send them apart", field=place)
        if not any(texts):
            raise InvalidInput(f"{place} is empty", field=place)
    firsts = tuple(texts[0] for texts in batch.values())
    seconds = tuple(texts[1] for texts in batch.values()) if count == 2 else ()
    raw = body.raw_scores or (body.parameters is not None and body.parameters.function_to_apply == "none")
    return ClassifyRequest(model=body.model, texts=firsts, pairs=seconds, cut=body.cut, normalize=not raw)


def _batch(inputs: str | list[str | list[str]]) -> dict[str, list[str]]:
    """Single texts and pairs, by their places in the body."""
    if isinstance(inputs, str):
        return {"inputs": [inputs]}
    texts = [entry for entry in inputs if isinstance(entry, str)]
    if inputs and len(texts) == len(inputs):
        return {"inputs": texts}
    return {f"inputs[{place}]": [entry] if isinstance(entry, str) else entry for place, entry in enumerate(inputs)}


def predict_reply(body: PredictBody, classified: Classified) -> HttpReply:
    labels, parameters = classified.labels, body.parameters
    top_k = parameters.top_k if parameters is not None else None
    scores = np.frombuffer(classified.answer.result.scores, dtype="<f4").reshape(-1, len(labels))
    predictions = [
        [{"score": row[label], "label": labels[label]} for label in order[:top_k].tolist()]
        for row, order in zip(scores, classified.best_first, strict=True)
    ]
    inputs = body.inputs
    single = parameters is None and (isinstance(inputs, str) or all(isinstance(text, str) for text in inputs))
    return counted_reply(classified.answer, predictions[0] if single else predictions)


RERANK_NAMES: FieldNames = {**OPTIONS, "return_documents": "return_text", "documents": "texts"}


class RerankBody(CuttableRequest, kw_only=True):
    """The body of POST /rerank, where it has `texts`. `top_n` is llama.cpp's."""

    query: str
    texts: Annotated[list[str], FILLED]
    raw_scores: bool = False
    return_text: bool = False
    top_n: Top | None = None


def rerank_request(body: RerankBody) -> RerankRequest:
    if not body.query and "" in body.texts:
        place = body.texts.index("")
        raise InvalidInput(f"query and texts[{place}] are both empty", field=f"texts[{place}]")
    return RerankRequest(
        model=body.model,
        queries=(body.query,),
        documents=tuple(body.texts),
        top_n=body.top_n or None,
        query_cut=body.cut,
        document_cut=body.cut,
        normalization=ScoreNormalization.LOGITS if body.raw_scores else ScoreNormalization.ACTIVATED,
        return_documents=body.return_text,
    )


def rerank_reply(body: RerankBody, reranked: Reranked) -> HttpReply:
    ranks: list[dict[str, Any]] = [{"index": index, "score": score} for index, score in reranked.ranking]
    if body.return_text:
        for rank, text in zip(ranks, reranked.texts, strict=True):
            rank["text"] = text
    return counted_reply(reranked.answer, ranks)
