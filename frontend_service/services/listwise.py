"""Rerank and Score by a listwise reranker: blocks to the worker, rows at their markers back, scores made here.

Knows no API.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import ceil

from frontend_service.domain.limits import Limits
from frontend_service.domain.ranking_requests import ScoreRequest
from frontend_service.domain.requests import PromptChoice
from frontend_service.postprocess import listwise as postprocess
from frontend_service.services.pipeline import PreparedRequest
from frontend_service.services.prepared_texts import PreparedTexts, prepare_texts
from frontend_service.tokenizing.batch import TokenizedBatch
from frontend_service.tokenizing.fair_thread_pool import TimeSlices
from frontend_service.tokenizing.listwise import Blocks, ListwiseTexts
from frontend_service.workers.interface import ServedModel
from shared.errors import InvalidInput
from shared.jobs import Encode, JobResult, RaggedTokens
from shared.vectors import InputType, Layout, OutputKind

NO_PROMPT = PromptChoice(literal="")
ROWS = Encode(outputs=frozenset({OutputKind.DENSE}), normalize=False, normalize_tokens=False)
"""The rows at the markers, as the model gives them: the mean of a query's rows depends on their lengths."""


class ListwiseScores:
    """The way of one request: `tokenize` comes first, then `score` of the rows that a worker computed."""

    def __init__(self, model: ServedModel, texts: ListwiseTexts) -> None:
        self._model, self._texts = model, texts
        self._blocks = Blocks(documents=(), counts=())

    def tokenize(self) -> TimeSlices[TokenizedBatch]:
        """Makes the blocks."""
        batch, self._blocks = yield from self._model.tokenizer.blocks(self._texts)
        return batch

    def score(self, result: JobResult) -> JobResult:
        """The result with scores instead of rows."""
        assert result.dense is not None
        scores = postprocess.scores(result.dense, self._blocks.documents, self._blocks.counts)
        return replace(result, dense=None, scores=scores)


def prepare(model: ServedModel, limits: Limits, request: ScoreRequest, document_entry: str) -> PreparedRequest:
    """Prepares the job of a Rerank or Score. `document_entry`: what errors call a document.

    Raises what `prepare_texts` raises, InvalidInput for a part of a list, and ResultTooLarge.
    """
    assert model.card.listwise is not None
    if request.part_of_list:
        why = "the model reads documents beside each other, and these are a part of a list: send all in one request"
        raise InvalidInput(why, field="part_of_list")
    side: Callable[..., PreparedTexts] = partial(prepare_texts, model, limits, choice=NO_PROMPT)
    instruction = request.instruction or ""
    limits.check_texts([instruction], "instruction", 1)
    queries = side(
        request.queries,
        request.query_entry,
        cut=request.query_cut,
        sequence_cut=request.sequence_cut,
        input_type=InputType.QUERY,
    )
    documents = side(
        request.documents,
        document_entry,
        cut=request.document_cut,
        sequence_cut=request.sequence_cut,
        input_type=InputType.DOCUMENT,
        count=limits.documents,
    )
    texts = ListwiseTexts(
        queries=queries.texts,
        documents=documents.texts,
        matrix=request.layout is Layout.MATRIX,
        query_cut=queries.cut,
        document_cut=documents.cut,
        query_entry=request.query_entry,
        entry=document_entry,
        instruction=instruction,
    )
    rows, columns = request.layout.shape(len(request.queries), len(request.documents))
    _check_rows(model, limits, rows * columns, rows * ceil(columns / model.card.listwise.block_documents))

    def check_tokens(tokens: RaggedTokens) -> None:
        _check_rows(model, limits, rows * columns, len(tokens))

    scores = ListwiseScores(model, texts)
    return PreparedRequest(
        model=model, work=ROWS, slices=scores.tokenize(), check_tokens=check_tokens, finish=scores.score
    )


def _check_rows(model: ServedModel, limits: Limits, scores: int, blocks: int) -> None:
    """Checks the rows that come from the worker: one for each score, and one for each block's query.

    A job with too many can never succeed: it must not wait for room. Raises ResultTooLarge.
    """
    size = ROWS.data_type.row_bytes(model.card.dense_width)
    why = f"a listwise reranker's scores are made of {size} bytes each: score fewer documents or queries in one request"
    limits.check_reply((scores + blocks) * size, why)
