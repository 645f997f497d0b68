"""Texts over the limit of which a request says nothing: refused, or cut by a frontend with --auto-truncate."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
from asgi import HttpApi, Worker
from fakes import pipeline_of
from google.protobuf.message import Message
from http_fields.field import CROSS_ENCODER, LONG

from frontend_service.api.selvage_v1 import codec, embed_rpcs
from frontend_service.api.tei_v1 import messages as tei
from frontend_service.domain.limits import Limits
from frontend_service.domain.requests import ScoreRequest, Truncation
from frontend_service.frontend import Frontend
from frontend_service.settings import FrontendSettings
from selvage.v1 import classification_pb2, embedding_pb2, model_pb2, ranking_pb2, vectors_pb2
from shared.caller import RequestTerms
from shared.errors import InputTooLong
from shared.server.calls import Calls
from shared.vectors import OutputKind, Task
from tei.v1 import tei_pb2

EVERYTHING: dict[str, Any] = {
    "tasks": (Task.EMBED, Task.RERANK, Task.CLASSIFY, Task.CLASSIFY_TOKENS),
    "outputs": (OutputKind.DENSE, OutputKind.SPARSE, OutputKind.MULTI_VECTOR),
    "labels": ("yes", "no"),
}
AUTO = FrontendSettings.read(["--auto-truncate"]).limits
VECTORS = vectors_pb2.MultiVectors(lengths=[1], dimensions=8, data_type=vectors_pb2.DATA_TYPE_FLOAT32, data=b"\0" * 32)
EMBED, RERANK, TEXTS = "embedding.embed", "ranking.rerank", "classification.texts"
RPCS: list[tuple[Callable[[Any], Any], str, Message]] = [
    (embed_rpcs.embed_request_from_pb, EMBED, embedding_pb2.EmbedRequest(texts=[LONG])),
    (codec.rerank_request_from_pb, RERANK, ranking_pb2.RerankRequest(query=LONG, documents=["a"])),
    (codec.score_request_from_pb, "ranking.score", ranking_pb2.ScoreRequest(queries=["a"], documents=[LONG])),
    (
        codec.max_sim_request_from_pb,
        "ranking.max_sim",
        ranking_pb2.MaxSimRequest(query_texts=[LONG], documents=VECTORS),
    ),
    (codec.classify_request_from_pb, TEXTS, classification_pb2.ClassifyRequest(texts=[LONG])),
    (
        codec.classify_tokens_request_from_pb,
        "classification.tokens",
        classification_pb2.ClassifyTokensRequest(texts=[LONG]),
    ),
    (tei.embed_request_from_pb, EMBED, tei_pb2.EmbedRequest(inputs=LONG)),
    (tei.embed_sparse_request_from_pb, EMBED, tei_pb2.EmbedSparseRequest(inputs=LONG)),
    (tei.embed_all_request_from_pb, EMBED, tei_pb2.EmbedAllRequest(inputs=LONG)),
    (tei.predict_request_from_pb, TEXTS, tei_pb2.PredictRequest(inputs=LONG)),
    (tei.predict_pair_request_from_pb, TEXTS, tei_pb2.PredictPairRequest(inputs=["a", LONG])),
    (tei.rerank_request_from_pb, RERANK, tei_pb2.RerankRequest(query="a", texts=[LONG])),
]


def frontend_of(worker: Worker, limits: Limits) -> Frontend:
    return Frontend(pipeline_of(worker, limits), Calls(timeout=600))


@pytest.mark.parametrize(("read", "ask", "message"), RPCS, ids=[type(message).__qualname__ for *_, message in RPCS])
async def test_an_rpc_that_does_not_say_is_cut_where_the_setting_says_so(
    read: Callable[[Any], Any], ask: str, message: Any
) -> None:
    """And refused elsewhere. An explicit `true` or `false` means what it says, whatever the setting."""

    async def longest(limits: Limits, **said: bool) -> int:
        """Tokens of the longest sequence that the worker gets."""
        worker, request = Worker(**EVERYTHING), type(message)(**said)
        request.MergeFrom(message)
        await attrgetter(ask)(frontend_of(worker, limits))(read(request), RequestTerms.within(9))
        return max(worker.jobs[0].tokens.lengths)

    assert await longest(AUTO) == await longest(Limits(), truncate=True) == 10
    for limits, said in ((Limits(), {}), (AUTO, {"truncate": False})):
        with pytest.raises(InputTooLong):
            await longest(limits, **said)


async def test_one_limit_that_says_no_leaves_the_other_to_the_setting() -> None:
    """A document is cut as the setting says where only the limit of sequences says no."""
    request = ScoreRequest(queries=("a",), documents=(LONG,), sequence_cut=Truncation(truncate=False))
    worker = Worker(**EVERYTHING)
    with pytest.raises(InputTooLong):
        await frontend_of(worker, Limits()).ranking.score(request, RequestTerms.within(9))
    await frontend_of(worker, AUTO).ranking.score(request, RequestTerms.within(9))
    assert max(worker.jobs[0].tokens.lengths) == 10


async def test_tokenize_shows_what_would_be_computed() -> None:
    """A long text is shown as it would be cut."""
    message, models = model_pb2.TokenizeRequest(texts=[LONG]), frontend_of(Worker(), AUTO).models
    (shown,) = (await models.tokenize(codec.tokenize_request_from_pb(message))).texts
    assert (len(shown.encoding), shown.truncated) == (10, True)
    message.truncate = False
    with pytest.raises(InputTooLong):
        await models.tokenize(codec.tokenize_request_from_pb(message))


REFUSING, CUTTING = HttpApi(Worker(**EVERYTHING)), HttpApi(Worker(**EVERYTHING), limits=AUTO)
SENTENCES = {"inputs": {"source_sentence": "a", "sentences": [LONG]}}


@pytest.mark.parametrize(
    ("path", "body", "says_no"),
    [
        ("/v1/embeddings", {"input": LONG}, {}),
        ("/pooling", {"input": LONG, "task": "embed"}, {}),
        ("/score", {"text_1": "a", "text_2": LONG}, {}),
        ("/classify", {"input": LONG}, {}),
        ("/embed", {"inputs": LONG}, {"truncate": False}),
        ("/embed", {"inputs": LONG, "truncate": None}, {}),
        ("/predict", {"inputs": LONG}, {"truncate": False}),
        ("/predict", {"inputs": ["a", LONG]}, {"truncate": False}),
        ("/rerank", {"query": "a", "texts": [LONG]}, {"truncate": False}),
        ("/similarity", SENTENCES, {"parameters": {"truncate": False}}),
        ("/", {"inputs": LONG}, {"truncate": False}),
    ],
)
async def test_a_body_that_does_not_say_likewise(path: str, body: dict[str, Any], says_no: dict[str, Any]) -> None:
    assert (await REFUSING.ask(path, body)).status in (400, 413)
    assert (await CUTTING.ask(path, body)).status == 200
    if says_no:
        reply = await CUTTING.ask(path, body | says_no)
        assert (reply.status in (400, 413), b"the limit is 10" in reply.body) == (True, True)


async def test_a_body_that_is_cut_unless_it_says_no() -> None:
    reply = await CUTTING.ask("/v2/embed", {"texts": [LONG], "truncate": "NONE"})
    assert (reply.status, b"the limit is 10" in reply.body) == (400, True)


async def test_info_tells_which_it_is() -> None:
    assert [(await api.ask("/info")).json["auto_truncate"] for api in (REFUSING, CUTTING)] == [False, True]


LONGER = "a b c d e f g h i j k l " * 20


@pytest.mark.parametrize(
    ("path", "body", "card", "size"),
    [
        ("/v1/embeddings", {"input": ["a", "x" * 99], "truncate": True}, EVERYTHING, 99),
        ("/v2/embed", {"texts": [LONGER]}, EVERYTHING, 480),
        ("/v1/rerank", {"query": "a", "documents": ["b", {"text": LONGER}]}, EVERYTHING, 480),
        ("/rerank", {"query": "a", "texts": [LONGER], "truncate": True}, CROSS_ENCODER, 480),
        ("/v1/embeddings", {"input": LONGER, "truncate": False}, EVERYTHING, 480),
        ("/tokenize", {"inputs": LONGER}, EVERYTHING, 480),
        ("/v1/rerank", {"query": LONGER, "documents": ["a"]}, CROSS_ENCODER, 480),
    ],
)
async def test_a_long_text_is_refused_with_the_limit(path: str, body: Any, card: dict[str, Any], size: int) -> None:
    worker = Worker(**card)
    reply = await HttpApi(worker, limits=Limits(text_bytes=48)).ask(path, body)
    assert f"has {size} bytes" in reply.error[1]
    assert "--max-text-bytes" in reply.error[1]
    assert worker.jobs == []
