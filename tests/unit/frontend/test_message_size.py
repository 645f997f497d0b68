"""How large messages, texts, results and replies are, told without writing them, which would hold up everybody else."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fakes import FakeWorker, card

from frontend_service.api.selvage_v1.servicers import EmbeddingServicer, ModelServicer
from frontend_service.domain.limits import (
    LINK_MATCH_BYTES,
    NUMBER_BYTES,
    SHOWN_TOKEN_BYTES,
    SPARSE_ENTRY_BYTES,
    ExpectedReply,
    Limits,
    expected_reply,
    utf8_bytes,
)
from frontend_service.frontend import Frontend
from frontend_service.services.pipeline import Pipeline, ServedModel
from selvage.v1.embedding_pb2 import EmbedRequest, TokenIds
from selvage.v1.model_pb2 import DetokenizeRequest, TokenizeRequest
from shared.caller import Caller
from shared.jobs import NO_TOKENS, Encode, Job, JobResult, MaxSim, RaggedTokens
from shared.server.calls import Calls
from shared.vectors import DataType, Layout, MultiVectors, OutputKind

MESSAGES: dict[str, tuple[Any, Any]] = {
    "Embed": (EmbeddingServicer, EmbedRequest(texts=["a"])),
    "Tokenize": (ModelServicer, TokenizeRequest(texts=["a b"])),
    "Detokenize": (ModelServicer, DetokenizeRequest(tokenized=[TokenIds(ids=[4, 5])])),
}


@pytest.mark.parametrize("point", [0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF])
def test_bytes_of_a_text(point: int) -> None:
    text = f"a{chr(point) * 3}b"
    assert utf8_bytes(text) == len(text.encode())


class Offloads:
    """A frontend that notes how many bytes each reading and writing has, and how many its replies reserve."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, threads = Calls(timeout=60), ThreadPoolExecutor(1)
        self.sizes, self.reserved = list[int](), list[int]()
        self.pipeline = Pipeline(FakeWorker(card()), Limits(), threads, threads, reserve=self.reserved.append)
        self.frontend = Frontend(self.pipeline, self.calls)
        offload = self.pipeline.offload

        def noted(size: int, work: Any, argument: Any) -> Any:
            self.sizes.append(size)
            return offload(size, work, argument)

        monkeypatch.setattr(self.pipeline, "offload", noted)

    async def answer(self, name: str, size: int) -> Any:
        """Answers a message that was read as so many bytes."""
        servicer, message = MESSAGES[name]
        with self.calls.running(Caller(method=name, request_id="id")), self.calls.admission.hold(size):
            return await getattr(servicer(self.frontend), name)(message, None)


@pytest.mark.parametrize("name", MESSAGES)
async def test_a_call_is_as_large_as_what_was_read_of_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a large one is read in a thread, and the message, which would have to be written for that, is not asked."""
    offloads = Offloads(monkeypatch)
    await offloads.answer(name, 5_000_000)
    assert offloads.sizes[0] == 5_000_000
    with offloads.calls.admission.request():  # the next one knows nothing of it
        assert offloads.calls.admission.message_size == 0


async def test_replies_that_no_worker_makes_count_before_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens of a text, and the texts of ids: so large ones are written in a thread, and others find no room."""
    offloads = Offloads(monkeypatch)
    shown = await offloads.answer("Tokenize", 10)
    size = SHOWN_TOKEN_BYTES * len(shown.texts[0].ids)
    assert (offloads.reserved, offloads.sizes[1:]) == ([size], [size])
    offloads = Offloads(monkeypatch)
    written = await offloads.answer("Detokenize", 10)
    size = len(written.texts[0].encode())
    assert (offloads.reserved, offloads.sizes[1:]) == ([size], [size])


async def test_a_result_is_reserved_as_it_was_asked_for_and_expected_as_it_is_computed() -> None:
    """Equal texts are computed once, and answered as often as they were sent."""

    class Noting(FakeWorker):
        async def run(self, model: ServedModel, job: Job, expected: ExpectedReply) -> JobResult:
            expectations.append(expected)
            return await super().run(model, job, expected)

    expectations, reserved = list[ExpectedReply](), list[int]()
    threads = ThreadPoolExecutor(1)
    pipeline = Pipeline(Noting(card()), Limits(), threads, threads, reserve=reserved.append)
    frontend, row = Frontend(pipeline, Calls(timeout=60)), DataType.FLOAT32.row_bytes(8)
    with frontend.calls.running(Caller(method="Embed", request_id="id")):
        await EmbeddingServicer(frontend).Embed(EmbedRequest(texts=["a", "b", "a"]), None)
    assert reserved == [3 * row]
    assert [expected.known_bytes for expected in expectations] == [2 * row]


@pytest.mark.parametrize("top_k", [1_000, 2_000_000_000])
def test_a_sparse_vector_has_no_more_weights_than_the_vocabulary(top_k: int) -> None:
    """Or one request would reserve gigabytes, and others would be refused until it is answered."""
    sparse = frozenset({OutputKind.SPARSE})
    work = Encode(outputs=sparse, normalize=True, normalize_tokens=True, sparse_top_k=top_k)
    tokens = RaggedTokens.of([[1, 2], [3]])
    assert expected_reply(work, tokens, card(vocabulary_size=100)).known_bytes == 2 * 100 * SPARSE_ENTRY_BYTES


def rows(*lengths: int) -> MultiVectors:
    """Binary rows of eight dimensions, a byte each."""
    data_type = DataType.BINARY
    return MultiVectors(data_type=data_type, dimensions=8, lengths=lengths, data=b"1" * sum(lengths), scales=b"")


@pytest.mark.parametrize(
    ("layout", "queries", "documents", "scores", "winners"),
    [
        (Layout.MATRIX, (3,), (2, 2, 2, 2), 4, 3 * 4),
        (Layout.MATRIX, (3, 2), (2, 2, 2, 2), 8, 5 * 4),
        (Layout.PAIRS, (3,), (2,), 1, 3),
        (Layout.PAIRS, (3, 2), (2, 2), 2, 5),
    ],
)
def test_an_explained_maxsim_has_a_winner_for_each_score_and_query_row(
    layout: Layout, queries: tuple[int, ...], documents: tuple[int, ...], scores: int, winners: int
) -> None:
    work = MaxSim(
        queries=rows(*queries),
        documents=rows(*documents),
        layout=layout,
        unit_rows=False,
        unit_queries=False,
        mean=False,
        explain=True,
    )
    assert expected_reply(work, NO_TOKENS, card()).known_bytes == scores * NUMBER_BYTES + winners * LINK_MATCH_BYTES
