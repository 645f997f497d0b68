"""How large messages, texts and replies are, told without writing them again, which would hold up everybody else."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fakes import FakeWorker, card
from hypothesis import given
from hypothesis import strategies as st

from frontend_service.api.selvage_v1.embed_rpcs import EmbeddingServicer
from frontend_service.api.selvage_v1.servicers import ModelServicer
from frontend_service.domain.limits import SHOWN_TOKEN_BYTES, Limits, utf8_bytes
from frontend_service.frontend import Frontend
from frontend_service.services.pipeline import Pipeline
from selvage.v1.embedding_pb2 import EmbedRequest, TokenIds
from selvage.v1.model_pb2 import DetokenizeRequest, TokenizeRequest
from shared.caller import Caller
from shared.server.calls import Calls
from shared.server.interceptor import CALLER

MESSAGES: dict[str, tuple[Any, Any]] = {
    "Embed": (EmbeddingServicer, EmbedRequest(texts=["a"])),
    "Tokenize": (ModelServicer, TokenizeRequest(texts=["a b"])),
    "Detokenize": (ModelServicer, DetokenizeRequest(tokenized=[TokenIds(ids=[4, 5])])),
}


@given(st.text())
def test_bytes_of_a_text(text: str) -> None:
    if all(letter < "\ud800" or letter > "\udfff" for letter in text):
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
        CALLER.set(Caller(method=name, request_id="id"))
        admission = self.calls.admission
        with admission.request(), admission.hold(size):
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
