"""What tei.v1 refuses, and the words of the contract for it."""

from typing import Any

import pytest

from frontend_service.api.tei_v1 import messages
from frontend_service.api.tei_v1.tei_servicers import tei_error
from shared.errors import InputTooLong, InvalidInput, Overloaded, SelvageError, UnknownModel, UnsupportedTask
from tei.v1 import tei_pb2 as pb


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (messages.embed_request_from_pb, pb.EmbedRequest()),
        (messages.embed_sparse_request_from_pb, pb.EmbedSparseRequest()),
        (messages.embed_all_request_from_pb, pb.EmbedAllRequest()),
        (messages.predict_request_from_pb, pb.PredictRequest()),
        (messages.predict_pair_request_from_pb, pb.PredictPairRequest(inputs=[""])),
        (messages.predict_pair_request_from_pb, pb.PredictPairRequest(inputs=["", ""])),
        (messages.encode_request_from_pb, pb.EncodeRequest()),
        (messages.decode_request_from_pb, pb.DecodeRequest()),
        (messages.rerank_request_from_pb, pb.RerankRequest(texts=["a", ""])),
    ],
)
def test_an_empty_text_is_refused(read: Any, message: Any) -> None:
    with pytest.raises(InvalidInput, match="empty") as raised:
        read(message)
    assert raised.value.field in ("texts[0]", "tokenized[0]", "documents[1]")


@pytest.mark.parametrize("inputs", [[], ["a", "b", "c"]])
def test_a_pair_is_one_text_or_two(inputs: list[str]) -> None:
    with pytest.raises(InvalidInput, match="must have 1 or 2"):
        messages.predict_pair_request_from_pb(pb.PredictPairRequest(inputs=inputs))


def test_an_unknown_direction_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"truncation_direction is 7; there are 0 \(RIGHT\), 1 \(LEFT\)"):
        messages.truncation_from_pb(pb.EmbedRequest(truncation_direction=7))  # type: ignore[arg-type]


INVALID, FAILED = "INVALID_ARGUMENT", "FAILED_PRECONDITION"
TOGETHER = "text_pairs[0] and its partner have 9 tokens together"


@pytest.mark.parametrize(
    ("method", "error", "field", "status"),
    [
        ("Embed/EmbedStream", InputTooLong("texts[7] has 9 tokens", field="texts[7]"), "inputs", INVALID),
        ("Predict/PredictPair", InputTooLong(TOGETHER, field="text_pairs[0]"), "inputs[1]", INVALID),
        ("Predict/PredictPairStream", InvalidInput("it is empty", field="texts[3]"), "inputs[0]", INVALID),
        ("Rerank/RerankStream", InvalidInput("it is empty", field="documents[3]"), "texts[3]", INVALID),
        ("Tokenize/Decode", InvalidInput("it has the id 99", field="tokenized[0]"), "ids", INVALID),
        ("Embed/Embed", UnsupportedTask("no prompt 'x'", field="prompt_name"), "prompt_name", INVALID),
        ("Embed/EmbedSparse", UnsupportedTask("no SPARSE output", field="outputs[0]"), "", FAILED),
        ("Embed/EmbedAll", UnsupportedTask("no output", field="outputs"), "", FAILED),
        ("Rerank/Rerank", UnsupportedTask("no method", field="method"), "", FAILED),
        ("Predict/Predict", UnsupportedTask("no task", field="model"), "", FAILED),
        ("Embed/Embed", UnknownModel("several", field="model"), "", FAILED),
        ("Embed/Embed", Overloaded("2 requests", retry_after=1.5), "", "RESOURCE_EXHAUSTED"),
    ],
)
def test_errors_have_the_words_of_the_contract(method: str, error: SelvageError, field: str, status: str) -> None:
    """Fields of its own messages; the reason stays ours."""
    begins = {INVALID: "Input validation error: ", FAILED: "", "RESOURCE_EXHAUSTED": "Model is overloaded: "}
    found = tei_error(f"/tei.v1.{method}", error)
    assert (found.message, found.field, found.status) == (begins[status] + error.message, field, status)
    assert (found.reason, found.retry_after) == (error.reason, error.retry_after)
