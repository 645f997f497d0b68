"""text-embeddings-inference over HTTP.

Source: its OpenAPI, huggingface.github.io/text-embeddings-inference. What differs is told in docs/tei.md.
"""

from typing import Any

import msgspec

from frontend_service.doors.http.body import Body
from frontend_service.doors.http.errors import TEI
from frontend_service.doors.http.reply import FLOAT_WEIGHT, Reply, written
from frontend_service.doors.http.route import Call, Route, Serve, exchanged
from frontend_service.doors.http.shapes.cohere import ranking as cohere
from frontend_service.doors.http.shapes.tei import embedding, info, prediction, ranking, tokenization
from frontend_service.doors.http.shapes.tei.common import INPUTS, known_as, of_any_name
from frontend_service.doors.http.shapes.tei.embedding import (
    EmbedAllBody,
    EmbedBody,
    SimilarityBody,
    all_reply,
    dense_reply,
    embed_request,
    similarity_reply,
    similarity_request,
    sparse_reply,
)
from frontend_service.doors.http.shapes.tei.prediction import PredictBody
from frontend_service.doors.http.shapes.tei.ranking import RerankBody
from frontend_service.frontend import Frontend
from frontend_service.requests import EmbedRequest
from shared.vectors import OutputKind, Task


class _Root(msgspec.Struct):
    """Which of the bodies of POST / it is."""

    query: Any = None
    texts: Any = None
    documents: Any = None
    model: str | None = None
    inputs: msgspec.Raw = msgspec.Raw()

    @property
    def compares(self) -> bool:
        """Whether it is /similarity's."""
        return memoryview(self.inputs)[:1].tobytes() == b"{"


_root = Body(_Root)


def reranks(frontend: Frontend) -> Serve:
    """TEI's bodies have `texts`; those with `documents` are Cohere's, and get its replies."""
    ours = exchanged(
        frontend,
        Body(RerankBody),
        ranking.rerank_request,
        of_any_name(frontend, frontend.ranking.rerank),
        ranking.rerank_reply,
        names_of=lambda _: ranking.NAMES,
    )
    theirs = cohere.reranks(frontend)

    async def serve(call: Call) -> Reply:
        given = await frontend.offload(len(call.body), _root.read, call.body)
        return await (theirs if given.documents is not None and given.texts is None else ours)(call)

    return serve


def routes(frontend: Frontend) -> list[Route]:
    """All of this shape."""
    embed = of_any_name(frontend, frontend.embedding.embed)

    def embeds(takes: Any, output: OutputKind, write: Any, weight: int = FLOAT_WEIGHT) -> Serve:
        def read(body: Any) -> EmbedRequest:
            return embed_request(body, output)

        return exchanged(frontend, Body(takes), read, embed, write, weight, embedding.names_of)

    dense = embeds(EmbedBody, OutputKind.DENSE, dense_reply)
    every = embeds(EmbedAllBody, OutputKind.MULTI_VECTOR, all_reply)
    sparse = embeds(EmbedAllBody, OutputKind.SPARSE, sparse_reply, embedding.SPARSE_WEIGHT)
    predict = exchanged(
        frontend,
        Body(PredictBody),
        prediction.predict_request,
        of_any_name(frontend, frontend.classification.texts),
        prediction.predict_reply,
        FLOAT_WEIGHT,
        prediction.names_of,
    )
    similar = exchanged(
        frontend,
        Body(SimilarityBody),
        similarity_request,
        embed,
        similarity_reply,
        names_of=lambda _: embedding.SIMILAR,
    )
    rerank = reranks(frontend)
    tokenize, decode = tokenization.tokenizes(frontend), tokenization.decodes(frontend)

    async def root(call: Call) -> Reply:
        """By what the body holds, and what the model is for."""
        given = await frontend.offload(len(call.body), _root.read, call.body)
        if given.query is not None:
            return await rerank(call)
        if given.compares:
            return await similar(call)
        card = frontend.models.get(known_as(frontend, given.model or "")).card
        if Task.EMBED not in card.tasks:
            return await predict(call)
        return await (sparse if card.outputs[:1] == (OutputKind.SPARSE,) else dense)(call)

    async def tells(_: Call) -> Reply:
        requests = frontend.calls.admission.bounds.requests
        return Reply(body=written(info.told(frontend.models.get(""), requests, frontend.threads)))

    vector, ranks = [[0.1, -0.2]], [{"index": 1, "score": 0.97}, {"index": 0, "score": 0.02}]
    labels = [{"score": 0.9, "label": "positive"}]
    posts: tuple[tuple[str, str, Serve, Any, Any], ...] = (
        ("/", "/embed, /predict, /rerank or /similarity, by the body and the model", root, EmbedBody, vector),
        ("/embed", "A vector for each input", dense, EmbedBody, vector),
        ("/embed_all", "A vector for each token of each input", every, EmbedAllBody, [vector]),
        ("/embed_sparse", "Weights of words", sparse, EmbedAllBody, [[{"index": 7, "value": 0.5}]]),
        ("/predict", "Labels of texts or pairs, best first", predict, PredictBody, labels),
        ("/rerank", "Texts in the order in which they fit a query", rerank, RerankBody, ranks),
        ("/similarity", "Cosines of one text with others", similar, SimilarityBody, [0.7]),
    )
    known = (
        ("/tokenize", "The tokens of texts", tokenize, tokenization.TokenizeBody, [[{"id": 101, "text": "[CLS]"}]]),
        ("/decode", "The texts of ids", decode, tokenization.DecodeBody, ["a text"]),
    )
    theirs = (cohere.CohereRerankBody,)
    or_takes = {"/": (PredictBody, RerankBody, *theirs, SimilarityBody), "/rerank": theirs}
    names = {"/tokenize": INPUTS, "/decode": tokenization.NAMES}
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
                names=names.get(path, ()),
                waits=waits,
                serve=serve,
            )
            for some, waits in ((posts, True), (known, False))
            for path, summary, serve, takes, gives in some
        ),
        Route(
            method="GET",
            path="/info",
            shape=TEI,
            summary="What is served, and its limits",
            gives={"model_id": "all-MiniLM-L6-v2", "max_input_length": 256},
            waits=False,
            serve=tells,
        ),
    ]
