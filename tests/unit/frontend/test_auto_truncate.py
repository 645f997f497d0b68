"""Texts over the limit of which a request says nothing: refused, or cut by a frontend with --auto-truncate."""

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from typing import Any

import pytest
from asgi import HttpApi, Worker
from fakes import FakeWorker, card
from google.protobuf.message import Message

from frontend_service.api.selvage_v1 import codec, embed_rpcs
from frontend_service.api.tei_v1 import messages as tei
from frontend_service.domain.limits import Limits
from frontend_service.domain.requests import ScoreRequest, Truncation
from frontend_service.frontend import Frontend
from frontend_service.services.pipeline import Pipeline
from frontend_service.settings import FrontendSettings
from selvage.v1 import classification_pb2, embedding_pb2, model_pb2, ranking_pb2, vectors_pb2
from shared.caller import RequestTerms
from shared.errors import InputTooLong, InvalidInput
from shared.jobs import Job, JobResult, Rows, SparseRows
from shared.server.calls import Calls
from shared.vectors import OutputKind, ScoringMethod, Task
from tei.v1 import tei_pb2

LONG = "a b c d e f g h i j k l"
EVERYTHING = {
    "tasks": (Task.EMBED, Task.RERANK, Task.CLASSIFY, Task.CLASSIFY_TOKENS),
    "outputs": (OutputKind.DENSE, OutputKind.SPARSE, OutputKind.MULTI_VECTOR),
    "labels": ("yes", "no"),
}
CROSS = {
    "tasks": (Task.RERANK, Task.CLASSIFY),
    "outputs": (),
    "methods": (ScoringMethod.CROSS_ENCODER,),
    "default_method": ScoringMethod.CROSS_ENCODER,
    "labels": ("relevant",),
}
AUTO = FrontendSettings.read(["--auto-truncate"]).limits

Asks = Callable[[Frontend, Any], Awaitable[object]]


def asks(read: Callable[[Any], Any], ask: str) -> Asks:
    """A message, read by a codec and put to one of the services."""
    return lambda frontend, message: attrgetter(ask)(frontend)(read(message), RequestTerms.within(9))


EMBED, RERANK, TEXTS = "embedding.embed", "ranking.rerank", "classification.texts"
OURS: dict[str, Any] = {"texts": [LONG]}
THEIRS: dict[str, Any] = {"inputs": LONG}
RPCS: dict[str, tuple[Asks, type[Message], dict[str, Any]]] = {
    "Embed": (asks(embed_rpcs.embed_request_from_pb, EMBED), embedding_pb2.EmbedRequest, OURS),
    "Rerank": (
        asks(codec.rerank_request_from_pb, RERANK),
        ranking_pb2.RerankRequest,
        {"query": LONG, "documents": ["a"]},
    ),
    "Score": (
        asks(codec.score_request_from_pb, "ranking.score"),
        ranking_pb2.ScoreRequest,
        {"queries": ["a"], "documents": [LONG]},
    ),
    "Classify": (asks(codec.classify_request_from_pb, TEXTS), classification_pb2.ClassifyRequest, OURS),
    "ClassifyTokens": (
        asks(codec.classify_tokens_request_from_pb, "classification.tokens"),
        classification_pb2.ClassifyTokensRequest,
        OURS,
    ),
    "tei Embed": (asks(tei.embed_request_from_pb, EMBED), tei_pb2.EmbedRequest, THEIRS),
    "tei EmbedSparse": (asks(tei.embed_sparse_request_from_pb, EMBED), tei_pb2.EmbedSparseRequest, THEIRS),
    "tei EmbedAll": (asks(tei.embed_all_request_from_pb, EMBED), tei_pb2.EmbedAllRequest, THEIRS),
    "tei Predict": (asks(tei.predict_request_from_pb, TEXTS), tei_pb2.PredictRequest, THEIRS),
    "tei PredictPair": (
        asks(tei.predict_pair_request_from_pb, TEXTS),
        tei_pb2.PredictPairRequest,
        {"inputs": ["a", LONG]},
    ),
    "tei Rerank": (asks(tei.rerank_request_from_pb, RERANK), tei_pb2.RerankRequest, {"query": "a", "texts": [LONG]}),
}


class Sparse(FakeWorker):
    """Gives every output that is asked for, of no use but to be there."""

    async def run(self, model: Any, job: Job) -> JobResult:
        result = await super().run(model, job)
        texts = len(job.tokens)
        empty = SparseRows(lengths=(0,) * texts, indices=b"", values=b"")
        return result if result.scores else JobResult(dense=Rows(dimensions=8, data=b""), sparse=empty)


def frontend_of(worker: FakeWorker, limits: Limits) -> Frontend:
    return Frontend(Pipeline(worker, limits, ThreadPoolExecutor(1), ThreadPoolExecutor(1)), Calls(timeout=600))


async def longest(name: str, limits: Limits, **said: Any) -> int:
    """Tokens of the longest sequence that the worker gets. Raises InputTooLong."""
    ask, kind, fields = RPCS[name]
    worker = Sparse(card(**EVERYTHING))
    await ask(frontend_of(worker, limits), kind(**fields, **said))
    return max(worker.jobs[0].tokens.lengths)


@pytest.mark.parametrize("name", RPCS)
async def test_an_rpc_that_does_not_say_is_cut_where_the_setting_says_so(name: str) -> None:
    """And refused elsewhere. An explicit `true` or `false` means what it says, whatever the setting."""
    with pytest.raises(InputTooLong):
        await longest(name, Limits())
    assert await longest(name, AUTO) == 10
    assert await longest(name, Limits(), truncate=True) == 10
    with pytest.raises(InputTooLong):
        await longest(name, AUTO, truncate=False)


async def test_a_maxsim_of_texts_likewise() -> None:
    ask = asks(codec.max_sim_request_from_pb, "ranking.max_sim")
    vectors = {"lengths": [1], "dimensions": 8, "data_type": vectors_pb2.DATA_TYPE_FLOAT32, "data": b"\0" * 32}
    message = ranking_pb2.MaxSimRequest(query_texts=[LONG], documents=vectors)
    worker = FakeWorker(card())
    with pytest.raises(InputTooLong):
        await ask(frontend_of(worker, Limits()), message)
    await ask(frontend_of(worker, AUTO), message)
    assert worker.jobs[0].tokens.lengths == (10,)


async def test_one_limit_that_says_no_leaves_the_other_to_the_setting() -> None:
    """A document is cut as the setting says where only the limit of sequences says no."""
    request = ScoreRequest(queries=("a",), documents=(LONG,), sequence_cut=Truncation(truncate=False))
    worker = FakeWorker(card(**EVERYTHING))
    with pytest.raises(InputTooLong):
        await frontend_of(worker, Limits()).ranking.score(request, RequestTerms.within(9))
    await frontend_of(worker, AUTO).ranking.score(request, RequestTerms.within(9))
    assert max(worker.jobs[0].tokens.lengths) == 10


async def test_tokenize_shows_what_would_be_computed() -> None:
    """A long text is shown as it would be cut."""
    message = model_pb2.TokenizeRequest(texts=[LONG])
    shown = await frontend_of(FakeWorker(card()), AUTO).models.tokenize(codec.tokenize_request_from_pb(message))
    assert (len(shown.texts[0].encoding), shown.texts[0].truncated) == (10, True)
    message.truncate = False
    with pytest.raises(InputTooLong):
        await frontend_of(FakeWorker(card()), AUTO).models.tokenize(codec.tokenize_request_from_pb(message))


@pytest.mark.parametrize(
    ("path", "body", "changes"),
    [
        ("/v1/embeddings", {"input": LONG}, EVERYTHING),
        ("/pooling", {"input": LONG, "task": "embed"}, EVERYTHING),
        ("/score", {"text_1": "a", "text_2": LONG}, EVERYTHING),
        ("/score", {"text_1": "a", "text_2": LONG}, CROSS),
        ("/classify", {"input": LONG}, EVERYTHING),
        ("/embed", {"inputs": LONG}, EVERYTHING),
        ("/embed", {"inputs": LONG, "truncate": None}, EVERYTHING),
        ("/predict", {"inputs": LONG}, EVERYTHING),
        ("/predict", {"inputs": ["a", LONG]}, EVERYTHING),
        ("/rerank", {"query": "a", "texts": [LONG]}, EVERYTHING),
        ("/rerank", {"query": "a", "texts": [LONG]}, CROSS),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": [LONG]}}, EVERYTHING),
        ("/", {"inputs": LONG}, EVERYTHING),
    ],
)
async def test_a_body_that_does_not_say_likewise(path: str, body: dict[str, Any], changes: dict[str, Any]) -> None:
    refusing, cutting = HttpApi(Worker(**changes)), HttpApi(Worker(**changes), limits=AUTO)
    assert (await refusing.ask(path, body)).status in (400, 413)
    assert (await cutting.ask(path, body)).status == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed", {"inputs": LONG, "truncate": False}),
        ("/rerank", {"query": "a", "texts": [LONG], "truncate": False}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": [LONG]}, "parameters": {"truncate": False}}),
        ("/v2/embed", {"texts": [LONG], "truncate": "NONE"}),
    ],
)
async def test_a_body_that_says_no_is_obeyed(path: str, body: dict[str, Any]) -> None:
    told = await HttpApi(Worker(), limits=AUTO).ask(path, body)
    assert told.status in (400, 413)
    assert b"the limit is 10" in told.body


@pytest.mark.parametrize("limits", [Limits(), AUTO])
async def test_info_tells_which_it_is(limits: Limits) -> None:
    told = await HttpApi(Worker(), limits=limits).ask("/info")
    assert told.json["auto_truncate"] is limits.auto_truncate


def test_a_stream_of_texts_says_the_same_throughout() -> None:
    message = tei_pb2.RerankStreamRequest(query="a", text="b")
    whole = tei.begin_rerank_request(message)
    assert not whole.HasField("truncate")
    with pytest.raises(InvalidInput, match="truncate of message 0"):
        tei.add_stream_text(whole, tei_pb2.RerankStreamRequest(query="a", text="b", truncate=False))


LONGER = "a b c d e f g h i j k l " * 20


@pytest.mark.parametrize(
    ("path", "body", "card", "told"),
    [
        ("/v1/embeddings", {"input": ["a", "x" * 99], "truncate": True}, EVERYTHING, "has 99 bytes"),
        ("/v2/embed", {"texts": [LONGER]}, EVERYTHING, "has 480 bytes"),
        ("/v1/rerank", {"query": "a", "documents": ["b", {"text": LONGER}]}, EVERYTHING, "has 480 bytes"),
        ("/rerank", {"query": "a", "texts": [LONGER], "truncate": True}, CROSS, "has 480 bytes"),
        ("/v1/embeddings", {"input": LONGER, "truncate": False}, EVERYTHING, "has 480 bytes"),
        ("/tokenize", {"inputs": LONGER}, EVERYTHING, "has 480 bytes"),
        ("/v1/rerank", {"query": LONGER, "documents": ["a"]}, CROSS, "has 480 bytes"),
    ],
)
async def test_a_long_text_is_refused_with_the_limit(path: str, body: Any, card: dict[str, Any], told: str) -> None:
    worker = Worker(**card)
    reply = await HttpApi(worker, limits=Limits(text_bytes=48)).ask(path, body)
    error = reply.json.get("error", reply.json)
    message = error if isinstance(error, str) else error.get("message", "")
    assert told in message
    assert "--max-text-bytes" in message
    assert worker.jobs == []
