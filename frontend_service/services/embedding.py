"""Vectors of texts, and fewer of them a document. Knows no door."""

import asyncio
from dataclasses import replace
from functools import partial

import numpy as np

from frontend_service.domain.answer import Answer
from frontend_service.domain.limits import FEWER_WEIGHTS, TEXT_LETTERS
from frontend_service.domain.requests import EmbedRequest, TokenPooling
from frontend_service.postprocess import packing, token_pooling
from frontend_service.services import job_options as settling
from frontend_service.services.pipeline import Pipeline
from shared.jobs import JobResult
from shared.terms import RequestTerms
from shared.vectors import DataType

TEXT, TOKENIZED = "texts[{}]", "tokenized[{}]"
SMALLER = "ask for fewer texts, fewer dimensions or a smaller data type, or use EmbedStream"


class EmbeddingService:
    """The rpcs of EmbeddingService, on domain types."""

    def __init__(self, service: Pipeline) -> None:
        self._service = service
        self._clustering = asyncio.Lock()

    async def embed(self, request: EmbedRequest, terms: RequestTerms) -> Answer:
        """The outputs asked for, of all texts."""
        service, model = self._service, self._service.model(request.model)
        encode = settling.encode_of(request, model.card)
        prompt = model.tokenization.prompt(request.prompt)
        letters = service.limits.check_texts(request.texts, TEXT, service.limits.texts, prompt)
        service.limits.check_count(len(request.tokenized), "tokenized", service.limits.texts)
        letters += sum(len(ids) + TEXT_LETTERS for ids in request.tokenized)  # checking an id is as much as a letter
        start, cut = service.clock(), service.limits.settled(request.cut)

        side = request.prompt.input_type
        if request.tokenized:
            slices = model.tokenization.given(request.tokenized, cut, side)
        else:
            slices = model.tokenization.texts(request.texts, prompt, cut, TEXT, side)
        tokenized = await service.tokenising(slices, letters)
        tokenize = service.clock() - start
        if request.pooling:
            entry, width = TOKENIZED if request.tokenized else TEXT, settling.width_of(encode, model.card)
            service.limits.check_pooled(tokenized.tokens.lengths, width, entry)
        service.limits.check_reply(settling.reply_bytes(request, encode, model.card, tokenized.tokens), SMALLER)
        answer = await service.answer(model, encode, tokenized, tokenize, terms)
        if request.pooling:
            answer = replace(answer, result=await self._pooled(answer.result, request, request.pooling))
        # How many weights a sparse vector has cannot be foreseen.
        service.limits.check_reply(answer.size, FEWER_WEIGHTS)
        return answer

    async def _pooled(self, result: JobResult, request: EmbedRequest, pooling: TokenPooling) -> JobResult:
        """FLOAT32 rows of a worker -> the same with pooled token rows, in the data type asked for.

        Requests take turns, a document each: clustering keeps Python's lock, so that two at once would gain nothing,
        take twice the memory, and leave fewer threads to tokenise. A cancelled call ends with its document.
        """
        assert result.tokens is not None
        options = (pooling.factor, pooling.protected, request.normalize is not False)
        documents = np.split(packing.unpack_float32(result.tokens), np.cumsum(result.row_lengths)[:-1])
        pooled = []
        for rows in documents:
            async with self._clustering:
                pooled.append(await self._service.in_thread(partial(token_pooling.pool, rows, *options)))
        return await self._service.in_thread(partial(_packed, result, pooled, request.data_type))


def _packed(result: JobResult, documents: list[token_pooling.Floats], data_type: DataType) -> JobResult:
    """The result with these token rows instead of its own, and all rows in one data type."""
    dense = result.dense
    return replace(
        result,
        dense=dense and packing.pack(packing.unpack_float32(dense), data_type),
        tokens=packing.pack(np.concatenate(documents), data_type),
        row_lengths=tuple(map(len, documents)),
    )
