"""A frontend in this process whose answers a test decides: real gRPC, no models."""

import inspect
import threading
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import grpc
import numpy as np
from grpc_status import rpc_status

from selvage import AsyncClient, Client
from selvage.transport import RPCS
from selvage.v1 import classification_pb2, embedding_pb2, model_pb2, ranking_pb2
from shared.errors import SelvageError
from shared.server.options import server_options
from shared.server.status import to_status

VOCABULARY = 1000


def dense_row(text: Any) -> np.ndarray:
    """[3] float32 that tells texts, or lists of ids, apart."""
    data = text.encode() if isinstance(text, str) else repr(list(text)).encode()
    return np.array([len(text), zlib.crc32(data) % 4096, sum(data)], dtype=np.float32)


def sparse_row(text: str) -> dict[int, float]:
    return {number: float(number) / 2 for number in sorted({letter % VOCABULARY for letter in text.encode()})}


MOST = 100.0
"""The largest score of a ranking, which all larger logits get."""


def score(query: str, document: str) -> float:
    return float((zlib.crc32(f"{query} {document}".encode()) % 1000) / 8)


def embed(request: Any) -> embedding_pb2.EmbedResponse:
    """Rows by the texts, or their spans, alone; as many token rows as a text has letters, up to 5."""
    texts = [*request.texts, *(each.ids for each in request.tokenized)]
    response = embedding_pb2.EmbedResponse(model="fake")
    response.usage.token_counts.extend(len(each) for each in texts)
    response.usage.truncated.extend(len(each) > 9 for each in texts)
    rows = [dense_row(each) for each in texts]
    if request.spans:
        pairs = zip(request.texts, request.spans, strict=True)
        rows = [
            dense_row(text[one:end]) for text, each in pairs for one, end in zip(each.starts, each.ends, strict=True)
        ]
    for kind in request.outputs:
        if kind == 1:
            response.dense.count, response.dense.dimensions = len(rows), 3
            response.dense.data = b"".join(each.tobytes() for each in rows)
        elif kind == 2:
            for each in map(sparse_row, request.texts):
                response.sparse.lengths.append(len(each))
                response.sparse.indices.extend(each)
                response.sparse.values.extend(each.values())
        else:
            response.multi_vector.dimensions = 3
            for text, row in zip(texts, rows, strict=True):
                response.multi_vector.lengths.append(min(len(text), 5))
                response.multi_vector.data += np.tile(row, min(len(text), 5)).tobytes()
    return response


def rerank(request: Any) -> ranking_pb2.RerankResponse:
    """As the service does: best first by their logits, `top_n` of them; all large logits have one score."""
    scored = [(score(request.query, each), index) for index, each in enumerate(request.documents)]
    best = sorted(scored, key=lambda pair: (-pair[0], pair[1]))
    best = best[: request.top_n] if request.HasField("top_n") else best
    results = [ranking_pb2.RerankResult(index=index, score=min(found, MOST), logit=found) for found, index in best]
    return ranking_pb2.RerankResponse(model="fake", results=results)


def matrix(request: Any) -> ranking_pb2.ScoreResponse:
    if request.layout == 1:
        pairs = zip(request.queries, request.documents, strict=True)
        found, rows, columns = [score(*pair) for pair in pairs], len(request.queries), 1
    else:
        found = [score(query, each) for query in request.queries for each in request.documents]
        rows, columns = len(request.queries), len(request.documents)
    return ranking_pb2.ScoreResponse(model="fake", scores=found, rows=rows, columns=columns)


def max_sim(request: Any) -> ranking_pb2.MaxSimResponse:
    """The number of a query's rows times that of a document's."""
    left = list(request.queries.lengths) or [len(each) for each in request.query_texts]
    right = list(request.documents.lengths)
    if request.layout == 1:
        found, rows, columns = [a * b for a, b in zip(left, right, strict=True)], len(left), 1
    else:
        found, rows, columns = [a * b for a in left for b in right], len(left), len(right)
    return ranking_pb2.MaxSimResponse(scores=found, rows=rows, columns=columns)


def classify(request: Any) -> classification_pb2.ClassifyResponse:
    found = [number for text in request.texts for number in (len(text), -len(text))]
    return classification_pb2.ClassifyResponse(model="fake", labels=["long", "short"], scores=found)


def classify_tokens(request: Any) -> classification_pb2.ClassifyTokensResponse:
    """A token a letter."""
    letters = [letter for text in request.texts for letter in text.encode()]
    places = [place for text in request.texts for place in range(len(text))]
    return classification_pb2.ClassifyTokensResponse(
        labels=["only"],
        lengths=[len(text) for text in request.texts],
        scores=letters,
        token_ids=letters,
        starts=places,
        ends=[place + 1 for place in places],
    )


def tokenize(request: Any) -> model_pb2.TokenizeResponse:
    texts = [
        model_pb2.TokenizedText(ids=each.encode(), tokens=list(each), special=[False] * len(each))
        for each in request.texts
    ]
    return model_pb2.TokenizeResponse(model="fake", texts=texts)


def detokenize(request: Any) -> model_pb2.DetokenizeResponse:
    return model_pb2.DetokenizeResponse(texts=[bytes(each.ids).decode() for each in request.tokenized])


def get_model(request: Any) -> model_pb2.GetModelResponse:
    return model_pb2.GetModelResponse(card=model_pb2.ModelCard(id=request.model or "fake", vocabulary_size=VOCABULARY))


def list_models(_: Any) -> model_pb2.ListModelsResponse:
    return model_pb2.ListModelsResponse(cards=[model_pb2.ModelCard(id="one"), model_pb2.ModelCard(id="two")])


ANSWERS: dict[str, Callable[[Any], Any]] = {
    "EmbedRequest": embed,
    "RerankRequest": rerank,
    "ScoreRequest": matrix,
    "MaxSimRequest": max_sim,
    "ClassifyRequest": classify,
    "ClassifyTokensRequest": classify_tokens,
    "TokenizeRequest": tokenize,
    "DetokenizeRequest": detokenize,
    "GetModelRequest": get_model,
    "ListModelsRequest": list_models,
}


class FakeFrontend:
    """`refuse` says what is wrong with a request, None where nothing is.

    A request that it `holds` is not answered: the call ends when its caller has gone. The first answers wait until so
    many are asked for `together`.

    `asked`: all requests, as they came; `metadata`: of each; `most_at_once`: how many were being answered at a time;
    `cancelled`: of how many the caller had gone.
    """

    def __init__(self, credentials: Any = None) -> None:
        self.asked: list[Any] = []
        self.metadata: list[dict[str, Any]] = []
        self.refusals: deque[SelvageError] = deque()
        self.refuse: Callable[[Any], SelvageError | None] = lambda _: None
        self.holds: Callable[[Any], bool] = lambda _: False
        self.seconds, self.together = 0.0, 0
        self.at_once = self.most_at_once = self.cancelled = 0
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(32), options=server_options(connection_age=False))
        self._server.add_generic_rpc_handlers((_Handlers(self),))
        if credentials is None:
            self._port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            self._port = self._server.add_secure_port("127.0.0.1:0", credentials)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.stop(None).wait()

    def answer(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._lock:
            self.asked.append(request)
            self.metadata.append(dict(context.invocation_metadata()))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            error = self.refusals.popleft() if self.refusals else self.refuse(request)
        if self.seconds and error is None:
            time.sleep(self.seconds)
        while self.holds(request) and error is None and context.is_active():
            time.sleep(0.01)
        while self.most_at_once < self.together:
            time.sleep(0.001)
        with self._lock:
            self.at_once -= 1
            self.cancelled += not context.is_active()
        if error is not None:
            tell(error, context)
        return ANSWERS[type(request).__name__](request)


def tell(error: SelvageError, context: grpc.ServicerContext) -> None:
    """As `shared.server.status.abort` does, on a server of threads."""
    trailers = list(rpc_status.to_status(to_status(error)).trailing_metadata)
    if error.retry_after is not None:
        trailers.append(("grpc-retry-pushback-ms", str(round(error.retry_after * 1000))))
    context.set_trailing_metadata(trailers)
    context.abort(grpc.StatusCode[error.status], error.message)


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, frontend: FakeFrontend) -> None:
        self._by_path = {
            path: grpc.unary_unary_rpc_method_handler(
                frontend.answer, kind.FromString, lambda reply: reply.SerializeToString()
            )
            for kind, (path, _) in RPCS.items()
        }

    def service(self, details: Any) -> Any:
        return self._by_path.get(details.method)


KINDS = {"Client": Client, "AsyncClient": AsyncClient}


class Asked:
    """Either client, asked alike: `await asked.embed(...)`."""

    def __init__(self, client: Client | AsyncClient) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def ask(*arguments: Any, **options: Any) -> Any:
            found = getattr(self.client, name)(*arguments, **options)
            return await found if inspect.isawaitable(found) else found

        return ask

    async def stream(self, texts: Any, **options: Any) -> list[Any]:
        """All of an `embed_stream`."""
        found = self.client.embed_stream(texts, **options)
        return list(found) if isinstance(found, Iterator) else [each async for each in found]


@asynccontextmanager
async def connected(kind: str, target: str, **options: Any) -> AsyncIterator[Asked]:
    """A client of either kind, closed at the end."""
    client = KINDS[kind](target, **options)
    try:
        yield Asked(client)
    finally:
        closing = client.close()
        if inspect.isawaitable(closing):
            await closing


def texts(count: int, letters: Sequence[int] = (3, 9, 1, 30)) -> list[str]:
    """All different."""
    return [f"{number}-" + "x" * letters[number % len(letters)] for number in range(count)]
