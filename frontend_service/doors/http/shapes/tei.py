"""text-embeddings-inference over HTTP: /embed, /embed_all, /embed_sparse, /predict, /rerank, /similarity, /tokenize,
/decode and /info.

Source: its OpenAPI, huggingface.github.io/text-embeddings-inference. What differs is told in docs/tei.md.
"""

from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from frontend_service.answer import Answer
from frontend_service.classification import Classified
from frontend_service.doors.http.body import (
    FILLED,
    Body,
    Count,
    FilledInputs,
    Id,
    Texts,
    inputs_of,
    texts_of,
)
from frontend_service.doors.http.errors import TEI
from frontend_service.doors.http.reply import FLOAT_WEIGHT, Reply, each_written, rows_of, split, written
from frontend_service.doors.http.route import Asked, Call, Route, Serve, exchanged
from frontend_service.doors.http.shapes import cohere
from frontend_service.doors.renaming import Names
from frontend_service.doors.tei_v1.codec.info import info_response
from frontend_service.doors.tei_v1.codec.tokenization import byte_places
from frontend_service.frontend import Frontend
from frontend_service.models import Description, ShownTexts
from frontend_service.ranking import Reranked
from frontend_service.ranking_requests import RerankRequest
from frontend_service.requests import (
    ClassifyRequest,
    Cut,
    DetokenizeRequest,
    EmbedRequest,
    PromptChoice,
    TokenizeRequest,
)
from shared.card import ModelCard
from shared.errors import InvalidInput
from shared.vectors import OutputKind, ScoringMethod, Task, TruncationSide

INPUTS: Names = ((r"text_pairs", "inputs"), (r"\b(texts|tokenized)\b", "inputs"))
RANKED: Names = ((r"return_documents", "return_text"), (r"set top_n, or ", ""), (r"\bdocuments\b", "texts"))
SIDES = {"left": TruncationSide.LEFT, "right": TruncationSide.RIGHT}
UNLIMITED = Cut(limited=False)
SPARSE_WEIGHT = 32
"""How much longer a byte of a sparse vector takes into JSON, an object each, than to be copied."""


class Cuttable(msgspec.Struct, kw_only=True):
    """What may be done with long texts. `model` is needed only where several are served."""

    truncate: bool | None = False
    truncation_direction: Literal["left", "right", "Left", "Right"] = "right"
    model: str = ""

    @property
    def cut(self) -> Cut:
        """In our words."""
        return Cut(truncate=bool(self.truncate), side=SIDES[self.truncation_direction.lower()])


class EmbedBody(Cuttable, kw_only=True):
    """POST /embed."""

    inputs: FilledInputs
    normalize: bool = True
    prompt_name: str | None = None
    dimensions: Count | None = None


class EmbedAllBody(Cuttable, kw_only=True):
    """POST /embed_all and /embed_sparse."""

    inputs: FilledInputs
    prompt_name: str | None = None


class LabelParameters(msgspec.Struct):
    """How huggingface_hub asks for labels."""

    top_k: Count | None = None
    function_to_apply: Literal["none"] | None = None


class PredictBody(Cuttable, kw_only=True):
    """POST /predict. With `parameters`, as huggingface_hub sends them, the reply is always a list of lists."""

    inputs: Annotated[
        str | Annotated[list[str | Annotated[list[str], FILLED]], FILLED],
        msgspec.Meta(description="A text, a list of one text or two, or a list of such lists."),
    ]
    raw_scores: bool = False
    parameters: LabelParameters | None = None


class RerankBody(Cuttable, kw_only=True):
    """POST /rerank, where it has `texts`."""

    query: str
    texts: Annotated[list[str], FILLED]
    raw_scores: bool = False
    return_text: bool = False


class Sentences(msgspec.Struct):
    """What POST /similarity compares."""

    source_sentence: str
    sentences: Annotated[list[str], FILLED]


class SimilarityParameters(Cuttable, kw_only=True):
    """How."""

    prompt_name: str | None = None


class SimilarityBody(msgspec.Struct, kw_only=True):
    """POST /similarity."""

    inputs: Sentences
    parameters: SimilarityParameters | None = None
    model: str = ""


class TokenizeBody(msgspec.Struct, kw_only=True):
    """POST /tokenize."""

    inputs: Texts
    add_special_tokens: bool = True
    prompt_name: str | None = None
    model: str = ""


class DecodeBody(msgspec.Struct, kw_only=True):
    """POST /decode: the ids of a text, or a list of such."""

    ids: Annotated[list[Id | list[Id]], FILLED]
    skip_special_tokens: bool = True
    model: str = ""


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
        prompt=PromptChoice(name=body.prompt_name),
        cut=body.cut,
        normalize=normalize,
        dimensions=dimensions,
    )


def _check_not_empty(texts: tuple[str, ...]) -> None:
    if "" in texts:
        place = texts.index("")
        raise InvalidInput(f"inputs[{place}] is empty", field=f"inputs[{place}]")


def dense_reply(_: Asked[EmbedBody, EmbedRequest], answer: Answer) -> Reply:
    return _counted(answer, each_written(rows_of(answer.result.dense)))


def all_reply(_: Asked[EmbedAllBody, EmbedRequest], answer: Answer) -> Reply:
    return _counted(answer, each_written(split(rows_of(answer.result.tokens), answer.result.row_lengths)))


def sparse_reply(_: Asked[EmbedAllBody, EmbedRequest], answer: Answer) -> Reply:
    rows = answer.result.sparse
    assert rows is not None
    indices = np.frombuffer(rows.indices, dtype="<i4")
    values = np.frombuffer(rows.values, dtype="<f4")  # numpy's own numbers: as floats of Python they would be longer
    bounds = pairwise(accumulate(rows.lengths, initial=0))
    each = (
        [{"index": index, "value": value} for index, value in zip(indices[a:b], values[a:b], strict=True)]
        for a, b in bounds
    )
    return _counted(answer, each_written(each))


def _counted(answer: Answer, content: Any) -> Reply:
    """With what the load scripts of text-embeddings-inference read beside a reply."""
    tokens = str(answer.tokens.total)
    return Reply(body=written(content), headers=(("x-compute-tokens", tokens), ("x-compute-type", "selvage")))


def predict_request(body: PredictBody) -> ClassifyRequest:
    """One text or pair, or many of either."""
    given = body.inputs
    batch: list[list[str]]
    if isinstance(given, str):
        batch = [[given]]
    elif all(isinstance(each, str) for each in given):
        batch = [given]  # type: ignore[list-item]
    else:
        batch = [[each] if isinstance(each, str) else each for each in given]
    count = len(batch[0]) if batch else 0
    for place, each in enumerate(batch):
        if len(each) not in (1, 2) or len(each) != count:
            raise InvalidInput(
                f"inputs[{place}] has {len(each)} entries, must have 1 or 2, and as many as the others",
                field=f"inputs[{place}]",
            )
        if not any(each):
            raise InvalidInput(f"inputs[{place}] is empty", field=f"inputs[{place}]")
    if not batch:
        raise InvalidInput("inputs is empty", field="inputs")
    firsts = tuple(each[0] for each in batch)
    seconds = tuple(each[1] for each in batch) if count == 2 else ()
    raw = body.raw_scores or (body.parameters is not None and body.parameters.function_to_apply == "none")
    return ClassifyRequest(model=body.model, texts=firsts, pairs=seconds, cut=body.cut, normalize=not raw)


def predict_reply(asked: Asked[PredictBody, ClassifyRequest], classified: Classified) -> Reply:
    labels, parameters = classified.labels, asked.body.parameters
    most = parameters.top_k if parameters is not None else None
    scores = np.frombuffer(classified.answer.result.scores, dtype="<f4").reshape(-1, len(labels))
    found = [
        [{"score": row[place], "label": labels[place]} for place in np.argsort(-row, kind="stable")[:most].tolist()]
        for row in scores
    ]
    given = asked.body.inputs
    single = parameters is None and (isinstance(given, str) or all(isinstance(each, str) for each in given))
    return _counted(classified.answer, found[0] if single else found)


def rerank_request(body: RerankBody) -> RerankRequest:
    if not body.query and "" in body.texts:
        place = body.texts.index("")
        raise InvalidInput(f"query and texts[{place}] are both empty", field=f"texts[{place}]")
    return RerankRequest(
        model=body.model,
        queries=(body.query,),
        documents=tuple(body.texts),
        query_cut=body.cut,
        document_cut=body.cut,
        activated=not body.raw_scores,
        return_documents=body.return_text,
    )


def rerank_reply(asked: Asked[RerankBody, RerankRequest], reranked: Reranked) -> Reply:
    found: list[dict[str, Any]] = [{"index": index, "score": score} for index, score in reranked.ranking]
    if asked.body.return_text:
        for each, text in zip(found, reranked.texts, strict=True):
            each["text"] = text
    return _counted(reranked.answer, found)


def similarity_request(body: SimilarityBody) -> EmbedRequest:
    if not body.inputs.sentences:
        raise InvalidInput("inputs.sentences is empty", field="inputs.sentences")
    parameters = body.parameters or SimilarityParameters()
    return EmbedRequest(
        model=body.model or parameters.model,
        texts=(body.inputs.source_sentence, *body.inputs.sentences),
        outputs=(OutputKind.DENSE,),
        prompt=PromptChoice(name=parameters.prompt_name),
        cut=parameters.cut,
        normalize=True,
    )


def similarity_reply(_: Asked[SimilarityBody, EmbedRequest], answer: Answer) -> Reply:
    rows = rows_of(answer.result.dense)
    return _counted(answer, rows[1:] @ rows[0])


def shown(texts: ShownTexts, inputs: tuple[str, ...], *, special: bool) -> list[list[dict[str, Any]]]:
    """Tokens with where they lie in their text after its prompt, in bytes."""
    found = []
    for given, text in zip(inputs, texts.texts, strict=True):
        whole, encoding = texts.prompt + given, text.encoding
        places, tokens = byte_places(whole), []
        columns = zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, text.offsets, strict=True)
        for identity, token, is_special, (start, stop) in columns:
            if not is_special:
                tokens.append(_token(identity, whole[start:stop], places[start], places[stop]))
            elif special:
                tokens.append({**_token(identity, token, None, None), "special": True})
        found.append(tokens)
    return found


def _token(identity: int, text: str, start: int | None, stop: int | None) -> dict[str, Any]:
    return {"id": identity, "text": text, "special": False, "start": start, "stop": stop}


def info(described: Description, requests: int, threads: int) -> dict[str, Any]:
    """As GET /info tells it."""
    card, told = described.card, info_response(described, requests, threads)
    return {
        "model_id": card.id,
        "model_sha": None,
        "model_dtype": card.dtype,
        "model_type": _model_type(card),
        "max_concurrent_requests": told.max_concurrent_requests,
        "max_input_length": told.max_input_length,
        "max_batch_tokens": told.max_batch_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": told.max_client_batch_size,
        "auto_truncate": False,
        "tokenization_workers": threads,
        "version": told.version,
        "sha": None,
        "docker_label": None,
    }


def _model_type(card: ModelCard) -> dict[str, Any]:
    labels = {
        "id2label": {str(number): label for number, label in enumerate(card.labels)},
        "label2id": {label: number for number, label in enumerate(card.labels)},
    }
    if ScoringMethod.CROSS_ENCODER in card.methods:
        return {"reranker": labels}
    if Task.CLASSIFY in card.tasks:
        return {"classifier": labels}
    return {"embedding": {"pooling": card.pooling}}


class _Root(msgspec.Struct):
    """Which of the bodies of POST / it is."""

    query: str | None = None
    texts: list[Any] | None = None
    documents: list[Any] | None = None
    model: str = ""
    inputs: msgspec.Raw = msgspec.Raw()

    @property
    def compares(self) -> bool:
        """Whether it is /similarity's."""
        return memoryview(self.inputs)[:1].tobytes() == b"{"


_root = Body(_Root)


def reranks(frontend: Frontend) -> Serve:
    """TEI's bodies have `texts`; those with `documents` are Cohere's, and get its replies."""
    ours = exchanged(frontend, Body(RerankBody), rerank_request, frontend.ranking.rerank, rerank_reply)
    theirs = cohere.reranks(frontend)

    async def serve(call: Call) -> Reply:
        given = await frontend.offload(len(call.body), _root.read, call.body)
        return await (theirs if given.documents is not None and given.texts is None else ours)(call)

    return serve


def routes(frontend: Frontend) -> list[Route]:
    """All of this shape."""
    embed = frontend.embedding.embed

    def reads(output: OutputKind) -> Any:
        return lambda body: embed_request(body, output)

    dense = exchanged(frontend, Body(EmbedBody), reads(OutputKind.DENSE), embed, dense_reply, FLOAT_WEIGHT)
    every = exchanged(frontend, Body(EmbedAllBody), reads(OutputKind.MULTI_VECTOR), embed, all_reply, FLOAT_WEIGHT)
    sparse = exchanged(frontend, Body(EmbedAllBody), reads(OutputKind.SPARSE), embed, sparse_reply, SPARSE_WEIGHT)
    predict = exchanged(
        frontend, Body(PredictBody), predict_request, frontend.classification.texts, predict_reply, FLOAT_WEIGHT
    )
    similar = exchanged(frontend, Body(SimilarityBody), similarity_request, embed, similarity_reply)
    rerank = reranks(frontend)
    tokenizing, decoding = Body(TokenizeBody), Body(DecodeBody)

    async def root(call: Call) -> Reply:
        """By what the body holds, and what the model is for."""
        given = await frontend.offload(len(call.body), _root.read, call.body)
        if given.query is not None:
            return await rerank(call)
        if given.compares:
            return await similar(call)
        card = frontend.models.get(given.model).card
        if Task.EMBED not in card.tasks:
            return await predict(call)
        return await (sparse if card.outputs[:1] == (OutputKind.SPARSE,) else dense)(call)

    async def tokenize(call: Call) -> Reply:
        body = await frontend.offload(len(call.body), tokenizing.read, call.body)
        inputs = texts_of(body.inputs)
        if not inputs:
            raise InvalidInput("inputs is empty", field="inputs")
        request = TokenizeRequest(
            model=body.model, texts=inputs, prompt=PromptChoice(name=body.prompt_name), cut=UNLIMITED
        )
        texts = await frontend.models.tokenize(request)
        return await frontend.offload(
            FLOAT_WEIGHT * texts.size,
            lambda texts: Reply(body=written(shown(texts, inputs, special=body.add_special_tokens))),
            texts,
        )

    async def decode(call: Call) -> Reply:
        body = await frontend.offload(len(call.body), decoding.read, call.body)
        _, tokenized = inputs_of(body.ids, "ids")  # type: ignore[arg-type]
        request = DetokenizeRequest(model=body.model, tokenized=tokenized, skip_special_tokens=body.skip_special_tokens)
        return Reply(body=written((await frontend.models.detokenize(request)).texts))

    async def tells(_: Call) -> Reply:
        requests = frontend.calls.admission.bounds.requests
        return Reply(body=written(info(frontend.models.get(""), requests, frontend.threads)))

    vector, ranks = [[0.1, -0.2]], [{"index": 1, "score": 0.97}, {"index": 0, "score": 0.02}]
    labels = [{"score": 0.9, "label": "positive"}]
    posts: tuple[tuple[str, str, Serve, Any, Any, Names], ...] = (
        ("/", "/embed, /predict, /rerank or /similarity, by the body and the model", root, EmbedBody, vector, INPUTS),
        ("/embed", "A vector for each input", dense, EmbedBody, vector, INPUTS),
        ("/embed_all", "A vector for each token of each input", every, EmbedAllBody, [vector], INPUTS),
        ("/embed_sparse", "Weights of words", sparse, EmbedAllBody, [[{"index": 7, "value": 0.5}]], INPUTS),
        ("/predict", "Labels of texts or pairs, best first", predict, PredictBody, labels, INPUTS),
        ("/rerank", "Texts in the order in which they fit a query", rerank, RerankBody, ranks, RANKED),
        ("/similarity", "Cosines of one text with others", similar, SimilarityBody, [0.7], INPUTS),
    )
    known = (
        ("/tokenize", "The tokens of texts", tokenize, TokenizeBody, [[{"id": 101, "text": "[CLS]"}]], INPUTS),
        ("/decode", "The texts of ids", decode, DecodeBody, ["a text"], ((r"\btokenized\b", "ids"),)),
    )
    ranking = (cohere.CohereRerankBody,)
    or_takes = {"/": (PredictBody, RerankBody, *ranking, SimilarityBody), "/rerank": ranking}
    return [
        *(
            Route(
                method="POST",
                path=path,
                shape=TEI,
                summary=summary,
                takes=takes,
                or_takes=or_takes.get(path, ()),
                gives=gives,
                names=names,
                waits=waits,
                serve=serve,
            )
            for some, waits in ((posts, True), (known, False))
            for path, summary, serve, takes, gives, names in some
        ),
        Route(
            method="GET",
            path="/info",
            shape=TEI,
            summary="What is served, and its limits",
            gives={"model_id": "minilm", "max_input_length": 256},
            waits=False,
            serve=tells,
        ),
    ]
