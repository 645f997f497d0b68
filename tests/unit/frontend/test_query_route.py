"""Models whose queries go a way of their own: tables that the frontend looks up, and files that do not fit."""

import hashlib
import json
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from fake_workers import FakeWorker as FakeRemoteWorker
from fake_workers import World
from fakes import WORDS, FakeWorker, card, pipeline_of, tokenizer_json
from hypothesis import given
from hypothesis import strategies as st

from frontend_service.api.selvage_v1 import embed_rpcs
from frontend_service.api.selvage_v1.codec import detokenize_request_from_pb
from frontend_service.domain.limits import ExpectedReply
from frontend_service.domain.requests import PromptChoice, TokenizeRequest
from frontend_service.services.embed import EmbeddingService
from frontend_service.services.models import ModelService
from frontend_service.tokenizing.tokenizer import read_files
from selvage.v1 import embedding_pb2, model_pb2
from shared.caller import RequestTerms
from shared.card import QueryRoute
from shared.errors import InputTooLong, InvalidInput, Overloaded
from shared.jobs import Job, JobResult, Priority, RaggedTokens, SparseRows
from shared.load import Backlog, Load
from shared.query_table import QueryTable
from shared.vectors import InputType, OutputKind, ScoringMethod, TruncationSide
from support.references import eventually

LATER = RequestTerms.within(3600)
WEIGHTS = np.arange(len(WORDS), dtype="<f4") / 8
QUERY, DOCUMENT, UNSPECIFIED = InputType.QUERY, InputType.DOCUMENT, InputType.UNSPECIFIED


def route(weights: np.ndarray = WEIGHTS, **changes: Any) -> QueryRoute:
    made = QueryRoute(
        default_input_type=DOCUMENT,
        max_tokens=4,
        vocabulary_size=len(weights),
        truncation_side=TruncationSide.RIGHT,
        table_digest=hashlib.sha256(weights.tobytes()).hexdigest(),
    )
    return replace(made, **changes)


def sparse_card(**changes: Any) -> dict[str, Any]:
    """Fields of a card of inference-free SPLADE."""
    outputs = {"outputs": (OutputKind.SPARSE,), "dimensions": 0, "multi_vector_dimensions": 0, "sparse_head": "splade"}
    scores = {"methods": (ScoringMethod.SPARSE,), "default_method": ScoringMethod.SPARSE}
    return outputs | scores | {"query_route": route()} | changes


def bare_tokenizer() -> bytes:
    """The tokenizer of queries: no special tokens."""
    return json.dumps(json.loads(tokenizer_json()) | {"post_processor": None}).encode()


FILES = {
    "tokenizer.json": tokenizer_json(),
    "query_tokenizer.json": bare_tokenizer(),
    "query_table.f32": WEIGHTS.tobytes(),
}


class SparseWorker(FakeWorker):
    """Answers every text with one weight of 7 for the token 1."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(card(**sparse_card(**changes)))
        self.served = replace(self.served, texts=read_files(FILES, self.served.card))

    async def run(self, model: Any, job: Job, expected: ExpectedReply) -> JobResult:
        self.jobs.append(job)
        count = len(job.tokens)
        values = np.full(count, 7, dtype="<f4").tobytes()
        return JobResult(
            sparse=SparseRows(lengths=(1,) * count, indices=np.ones(count, "<i4").tobytes(), values=values)
        )


def services(worker: SparseWorker) -> tuple[EmbeddingService, ModelService]:
    pipeline = pipeline_of(worker)
    return EmbeddingService(pipeline), ModelService(pipeline)


def embed(kind: InputType = UNSPECIFIED, *texts: str, **fields: Any) -> Any:
    message = embedding_pb2.EmbedRequest(texts=texts or ["b a b", "c"], input_type=int(kind), **fields)  # type: ignore[arg-type]
    return embed_rpcs.embed_request_from_pb(message)


def weights_of(rows: SparseRows) -> list[dict[int, float]]:
    ids, values = np.frombuffer(rows.indices, "<i4").tolist(), np.frombuffer(rows.values, "<f4").tolist()
    pairs = iter(zip(ids, values, strict=True))
    return [dict(islice(pairs, length)) for length in rows.lengths]


async def test_queries_are_looked_up_without_a_worker() -> None:
    """Each id once, without special tokens; equal texts keep their order. The worker gets no job."""
    worker = SparseWorker()
    service, _ = services(worker)
    answer = await service.embed(embed(QUERY, "b a b", "c", "b a b"), LATER)
    a, b, c = (WORDS.index(word) for word in "abc")
    assert answer.result.sparse is not None
    both = {a: WEIGHTS[a], b: WEIGHTS[b]}
    assert weights_of(answer.result.sparse) == [both, {c: WEIGHTS[c]}, both]
    assert answer.tokens.lengths == (3, 1, 3)
    assert worker.jobs == []


@pytest.mark.parametrize("default", [QUERY, DOCUMENT, UNSPECIFIED])
async def test_texts_without_a_kind_go_the_default_way(default: InputType) -> None:
    """Without one the kind must be said: the error names the field."""
    worker = SparseWorker(query_route=route(default_input_type=default))
    service, models = services(worker)
    if default is not UNSPECIFIED:
        await service.embed(embed(), LATER)
        assert len(worker.jobs) == (default is DOCUMENT)
        shown = await models.tokenize(TokenizeRequest(texts=("a",)))
        assert len(shown.texts[0].encoding) == (1 if default is QUERY else 3)
        return
    ids = embed_rpcs.embed_request_from_pb(embedding_pb2.EmbedRequest(tokenized=[{"ids": [5]}]))
    calls = [service.embed(embed(), LATER), service.embed(ids, LATER), models.tokenize(TokenizeRequest(texts=("a",)))]
    for call in calls:
        with pytest.raises(InvalidInput) as refused:
            await call
        assert refused.value.field == "input_type"
    await service.embed(embed(QUERY), LATER)
    shown = await models.tokenize(TokenizeRequest(texts=("a",), prompt=PromptChoice(input_type=QUERY)))
    assert len(shown.texts[0].encoding) == 1


async def test_ids_become_text_by_the_tokenizer_of_their_kind() -> None:
    """The same id may be another token of queries; a kind that is not told is the default one, or must be."""
    reordered = json.loads(bare_tokenizer())
    a, b = (WORDS.index(word) for word in "ab")
    reordered["model"]["vocab"] |= {"a": b, "b": a}
    files = FILES | {"query_tokenizer.json": json.dumps(reordered).encode()}
    written: dict[tuple[InputType, InputType], list[str]] = {}
    for default in (QUERY, DOCUMENT, UNSPECIFIED):
        worker = SparseWorker(query_route=route(default_input_type=default))
        worker.served = replace(worker.served, texts=read_files(files, worker.served.card))
        _, models = services(worker)
        for kind in (QUERY, DOCUMENT, UNSPECIFIED):
            message = model_pb2.DetokenizeRequest(tokenized=[{"ids": [a]}], input_type=int(kind))  # type: ignore[arg-type]
            request = detokenize_request_from_pb(message)
            if default is kind is UNSPECIFIED:
                with pytest.raises(InvalidInput) as refused:
                    await models.detokenize(request)
                assert refused.value.field == "input_type"
            else:
                written[default, kind] = (await models.detokenize(request)).texts
    assert all(texts == ["b" if (kind or default) is QUERY else "a"] for (default, kind), texts in written.items())
    assert len(written) == 8


async def test_queries_have_limits_of_their_own() -> None:
    service, _ = services(SparseWorker())
    with pytest.raises(InputTooLong, match=r"texts\[0\] has .* the limit is 4"):
        await service.embed(embed(QUERY, "a b c d e"), LATER)
    cut = await service.embed(embed(QUERY, "a b c d e", truncate=True), LATER)
    assert cut.tokens.lengths == (4,)
    tokenized = {"tokenized": [{"ids": [5, 5, 6]}], "input_type": int(QUERY), "sparse_top_k": 1}
    request = embed_rpcs.embed_request_from_pb(embedding_pb2.EmbedRequest(**tokenized))  # type: ignore[arg-type]
    answer = await service.embed(request, LATER)
    assert answer.result.sparse is not None
    assert weights_of(answer.result.sparse) == [{6: WEIGHTS[6]}]


IDS = st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=9), min_size=1, max_size=6)
VALUES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.5, 3.0]), min_size=12, max_size=12)


@given(IDS, VALUES, st.integers(0, 5))
def test_a_table_equals_a_dictionary(texts: list[list[int]], values: list[float], top_k: int) -> None:
    """Of equal weights the smaller ids stay, as in a worker."""
    weights = np.array(values, dtype="<f4")
    table = QueryTable(weights)
    expected = []
    for ids in texts:
        vector = {identity: values[identity] for identity in sorted(set(ids)) if values[identity] > 0}
        strongest = sorted(vector, key=lambda identity: (-vector[identity], identity))[: top_k or None]
        expected.append({identity: vector[identity] for identity in sorted(strongest)})
    rows = table.look_up(RaggedTokens.of(texts), top_k)
    assert weights_of(rows) == expected
    assert len(rows.indices) == len(rows.values) == 4 * sum(rows.lengths)


def broken(weights: np.ndarray) -> tuple[dict[str, bytes], QueryRoute]:
    return {"query_table.f32": weights.tobytes()}, route(weights.astype("<f4"))


LIES = {
    "has no table": ({"query_table.f32": b""}, route(), "0 bytes"),
    "one weight too few": ({"query_table.f32": WEIGHTS[1:].tobytes()}, route(), "bytes for"),
    "another table": ({"query_table.f32": WEIGHTS[::-1].tobytes()}, route(), "not the one"),
    "not a number": (*broken(np.full(len(WORDS), np.nan, "<f4")), "no number of 0 or more"),
    "infinite": (*broken(np.full(len(WORDS), np.inf, "<f4")), "no number of 0 or more"),
    "negative": (*broken(np.full(len(WORDS), -1, "<f4")), "no number of 0 or more"),
    "no tokenizer": ({"query_tokenizer.json": b"{"}, route(), "tokenizer.json"),
}


@pytest.mark.parametrize(("files", "query_route", "why"), LIES.values(), ids=LIES)
def test_files_that_do_not_fit_are_refused(files: dict[str, bytes], query_route: QueryRoute, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_files(FILES | files, card(**sparse_card(query_route=query_route)))


def remote() -> FakeRemoteWorker:
    worker = FakeRemoteWorker(**sparse_card())
    worker.tokenizer = FILES["tokenizer.json"]
    worker.more_files = [(name, content) for name, content in FILES.items() if name != "tokenizer.json"]
    return worker


@pytest.mark.parametrize("looks_up", [True, False])
async def test_the_table_comes_with_the_tokenizer(looks_up: bool) -> None:
    """With a table, no request is refused unread because the worker is busy: it may be a query."""
    worker = remote() if looks_up else FakeRemoteWorker()
    worker.load = Load(
        queued_tokens=1000,
        tokens_per_second=100,
        backlogs={Priority.DEFAULT: Backlog(keys=1, jobs=1, tokens=1000)},
    )
    async with World(worker) as world:
        await world.until(True)
        await eventually(lambda: world.fleet.waits.get("fake", 0) > 0)
        served, terms = world.fleet.model("fake"), RequestTerms.within(world.fleet.waits["fake"] / 2)
        if looks_up:
            assert served.table_of(QUERY) is not None
            assert served.table_of(DOCUMENT) is None
            assert served.tokenizer_of(QUERY) is not served.tokenizer_of(DOCUMENT)
            world.fleet.check_terms(terms)
            return
        assert served.table_of(QUERY) is None
        with pytest.raises(Overloaded):
            world.fleet.check_terms(terms)
