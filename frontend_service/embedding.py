"""Vectors of texts. Knows no protobuf and no gRPC."""

import time

from frontend_service import settling
from frontend_service.requests import EmbedRequest
from frontend_service.service import Answer, Service
from frontend_service.tokenized import Tokenized, Watch
from shared.deadline import Deadline

TEXT = "texts[{}]"
SMALLER = "ask for fewer texts, fewer dimensions or a smaller data type, or use EmbedStream once it is there"


class Embedding:
    """The rpcs of EmbeddingService, on domain types."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def embed(self, request: EmbedRequest, deadline: Deadline) -> Answer:
        """The outputs asked for, of all texts."""
        service, model = self._service, self._service.model(request.model)
        encode = settling.encode_of(request, model.card)
        prompt = model.tokenization.prompt(request.prompt)
        service.limits.check_texts(request.texts, TEXT, service.limits.texts, prompt)
        service.limits.check_count(len(request.tokenized), "tokenized", service.limits.texts)
        start = time.monotonic()

        def work(watch: Watch) -> Tokenized:
            if request.tokenized:
                return model.tokenization.given(request.tokenized, request.cut)
            return model.tokenization.texts(request.texts, prompt, request.cut, TEXT, watch)

        tokenized = await service.tokenising(work)
        tokenize = time.monotonic() - start
        service.limits.check_reply(settling.reply_bytes(encode, model.card, tokenized.tokens), SMALLER)
        answer = await service.answer(model, encode, tokenized, tokenize, deadline)
        # How many weights a sparse vector has cannot be foreseen.
        service.limits.check_reply(answer.size, "set sparse_top_k, or ask for fewer texts")
        return answer
