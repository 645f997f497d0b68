"""A listwise reranker's card and worker, requests to them, and what blocks and scores are by the definition."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from fakes import FakeWorker, card
from kinds import qwen
from tokenizers import AddedToken, Tokenizer, decoders

from frontend_service.api.selvage_v1 import codec
from frontend_service.domain.limits import Limits, expected_reply
from frontend_service.domain.requests import ScoreRequest
from frontend_service.services.pipeline import Answer, Pipeline, ServedModel
from frontend_service.services.rank import RankingService, Reranked
from frontend_service.tokenizing.tokenizer import ModelTexts, ModelTokenizer
from selvage.v1 import ranking_pb2
from shared.caller import RequestTerms
from shared.card import Listwise, ModelCard
from shared.jobs import Job, JobResult, Rows
from shared.vectors import ScoringMethod, Task

LATER = RequestTerms.within(3600)
D, Q = "<|d|>", "<|q|>"
PLAIN = Listwise(
    query_length=8,
    document_length=20,
    block_documents=3,
    dimensions=8,
    opening="rank {count} for: {query}\n",
    instruction="<how>\n{instruction}\n</how>\n",
    document="<p {number}>\n{document}" + D + "\n</p>\n",
    closing="<q>\n{query}" + Q + "\n</q>!",
    document_marker=D,
    document_marker_id=400,
    query_marker=Q,
    query_marker_id=401,
)


def tokenizer() -> Tokenizer:
    """One with Qwen's stages, and both markers as tokens."""
    made = qwen()
    made.decoder = decoders.ByteLevel()
    missing = 400 - made.get_vocab_size()
    made.add_special_tokens([AddedToken(f"<|{number}|>", normalized=False) for number in range(missing)])
    made.add_special_tokens([AddedToken(token, normalized=False) for token in (D, Q)])
    assert [made.token_to_id(token) for token in (D, Q)] == [400, 401]
    return made


TOKENIZER = tokenizer()


def listwise_card(**changes: Any) -> ModelCard:
    """The card of a listwise reranker. `changes`: of its texts and limits, or of the card."""
    own = {name: changes.pop(name) for name in list(changes) if hasattr(PLAIN, name)}
    fields: dict[str, Any] = {
        "outputs": (),
        "methods": (ScoringMethod.LISTWISE,),
        "default_method": ScoringMethod.LISTWISE,
        "pooling": "",
        "dimensions": 0,
        "multi_vector_dimensions": 0,
        "tasks": (Task.RERANK,),
        "max_tokens": 500,
        "vocabulary_size": 402,
        "pools_spans": True,
        "listwise": replace(PLAIN, **own),
    }
    return card(**fields | changes)


class Blocks(FakeWorker):
    """Every row has random numbers, those of equal sequences the same."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(listwise_card(**changes))
        reader = ModelTokenizer(TOKENIZER.to_str().encode(), self.served.card)
        self.served = replace(self.served, texts=ModelTexts(tokenizer=reader))
        self.rows: list[np.ndarray] = []

    async def run(self, model: ServedModel, job: Job) -> JobResult:
        self.jobs.append(job)
        assert job.ranges is not None
        expected_reply(job.work, job.tokens, model.card, job.ranges)
        self.rows = [
            np.random.default_rng(list(sequence.encode())).standard_normal((count, 8), dtype="<f4")
            for sequence, count in zip(self.blocks, job.ranges.counts, strict=True)
        ]
        return JobResult(dense=Rows(dimensions=8, data=np.concatenate(self.rows).tobytes()))

    @property
    def blocks(self) -> list[str]:
        """The texts of the last job's sequences."""
        tokens = self.jobs[-1].tokens
        ids = np.split(np.frombuffer(tokens.ids, dtype="<i4"), tokens.offsets[1:-1])
        return [TOKENIZER.decode(each.tolist(), skip_special_tokens=False) for each in ids]


def pipeline(worker: Blocks, **limits: Any) -> Pipeline:
    return Pipeline(worker, Limits(**limits), ThreadPoolExecutor(1), ThreadPoolExecutor(1))


async def rerank(worker: Blocks, query: str, documents: Sequence[str], **fields: Any) -> Reranked:
    asked = ranking_pb2.RerankRequest(query=query, documents=documents, **fields)
    return await RankingService(pipeline(worker)).rerank(codec.rerank_request_from_pb(asked), LATER)


async def score(worker: Blocks, queries: Sequence[str], documents: Sequence[str], **fields: Any) -> Answer:
    asked = ScoreRequest(queries=tuple(queries), documents=tuple(documents), **fields)
    return await RankingService(pipeline(worker)).score(asked, LATER)


def written(query: str, documents: Sequence[str], how: str = "") -> str:
    """A block, by the definition."""
    opening = f"rank {len(documents)} for: {query}\n" + (f"<how>\n{how}\n</how>\n" if how else "")
    passages = "".join(f"<p {number}>\n{document}{D}\n</p>\n" for number, document in enumerate(documents))
    return f"{opening}{passages}<q>\n{query}{Q}\n</q>!"


def cosines(blocks: Sequence[np.ndarray]) -> np.ndarray:
    """Scores of one query's blocks [documents + 1, D], by the definition."""

    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))

    weights = [max((1 + cosine(row, block[-1])) / 2 for row in block[:-1]) for block in blocks]
    query = sum(weight * block[-1] for weight, block in zip(weights, blocks, strict=True)) / sum(weights)
    return np.array([cosine(row, query) for block in blocks for row in block[:-1]])


def scores_of(answer: Answer) -> np.ndarray:
    return np.frombuffer(answer.result.scores, dtype="<f4")
