"""How large messages and texts are, told without writing them again, which would hold up everybody else."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from frontend_service.api.selvage_v1.server import EmbeddingServicer
from frontend_service.domain.limits import Limits, utf8_bytes
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedResponse
from shared.caller import Caller
from shared.server.admission import Admission, Bounds
from shared.server.interceptor import CALLER


@given(st.text())
def test_bytes_of_a_text(text: str) -> None:
    if all(letter < "\ud800" or letter > "\udfff" for letter in text):
        assert utf8_bytes(text) == len(text.encode())


async def test_a_call_is_as_large_as_what_was_read_of_it() -> None:
    """So a large one is read in a thread, and the message, which would have to be written for that, is not asked."""
    admission, sizes = Admission(Bounds()), list[int]()

    async def exchange(exchange: Any, message: Any, size: int, caller: Caller) -> Any:
        sizes.append(size)
        return EmbedResponse(), SimpleNamespace(tokenize=0.0, queue=0.0, compute=0.0, postprocess=0.0, transfer=0.0)

    services = dict.fromkeys(("embedding", "ranking", "classification", "models"), SimpleNamespace(embed=None))
    calls = SimpleNamespace(admission=admission)
    frontend: Any = SimpleNamespace(calls=calls, exchange=exchange, limits=Limits(), **services)
    servicer = EmbeddingServicer(frontend)
    CALLER.set(Caller(method="Embed", request_id="id"))
    message = EmbedRequest(texts=["a"])
    with admission.request(), admission.hold(5_000_000):
        await servicer._answer_call(servicer._embed, message)
    assert sizes == [5_000_000]
    with admission.request():  # the next one knows nothing of it
        assert admission.message_size == 0
