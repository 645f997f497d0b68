"""What tei.v1 refuses, and the words of the contract for it."""

from typing import Any

import pytest

from frontend_service.api.tei_v1 import messages
from frontend_service.api.tei_v1.tei_errors import tei_error
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
    ],
)
def test_an_empty_text_is_refused(read: Any, message: Any) -> None:
    with pytest.raises(InvalidInput, match="is empty") as raised:
        read(message)
    assert raised.value.field in ("texts[0]", "tokenized[0]")


def test_an_unknown_direction_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"truncation_direction is 7; there are 0 \(RIGHT\), 1 \(LEFT\)"):
        messages.truncation_from_pb(pb.EmbedRequest(truncation_direction=7))  # type: ignore[arg-type]


PREFIX = "Input validation error: "


@pytest.mark.parametrize(
    ("method", "error", "message", "field", "status"),
    [
        (
            "Embed/EmbedStream",
            InputTooLong("texts[7] has 9 tokens, the limit is 8; truncate would cut it", field="texts[7]"),
            PREFIX + "texts[7] has 9 tokens, the limit is 8; truncate would cut it",
            "inputs",
            "INVALID_ARGUMENT",
        ),
        (
            "Predict/PredictPair",
            InputTooLong("text_pairs[0] and its partner have 9 tokens together", field="text_pairs[0]"),
            PREFIX + "text_pairs[0] and its partner have 9 tokens together",
            "inputs[1]",
            "INVALID_ARGUMENT",
        ),
        (
            "Predict/PredictPairStream",
            InvalidInput("texts[3] is empty", field="texts[3]"),
            PREFIX + "texts[3] is empty",
            "inputs[0]",
            "INVALID_ARGUMENT",
        ),
        (
            "Rerank/RerankStream",
            InvalidInput("documents[3] is empty", field="documents[3]"),
            PREFIX + "documents[3] is empty",
            "texts[3]",
            "INVALID_ARGUMENT",
        ),
        (
            "Tokenize/Decode",
            InvalidInput("tokenized[0] has the id 99", field="tokenized[0]"),
            PREFIX + "tokenized[0] has the id 99",
            "ids",
            "INVALID_ARGUMENT",
        ),
        (
            "Embed/Embed",
            UnsupportedTask("the model has no prompt 'x'", field="prompt_name"),
            PREFIX + "the model has no prompt 'x'",
            "prompt_name",
            "INVALID_ARGUMENT",
        ),
        (
            "Embed/EmbedSparse",
            UnsupportedTask("the model has no SPARSE output", field="outputs[0]"),
            "the model has no SPARSE output",
            "",
            "FAILED_PRECONDITION",
        ),
        ("Embed/EmbedAll", UnsupportedTask("no output", field="outputs"), "no output", "", "FAILED_PRECONDITION"),
        ("Rerank/Rerank", UnsupportedTask("no method", field="method"), "no method", "", "FAILED_PRECONDITION"),
        ("Predict/Predict", UnsupportedTask("no task", field="model"), "no task", "", "FAILED_PRECONDITION"),
        ("Embed/Embed", UnknownModel("several", field="model"), "several", "", "FAILED_PRECONDITION"),
        (
            "Embed/Embed",
            Overloaded("2 requests", retry_after=1.5),
            "Model is overloaded: 2 requests",
            "",
            "RESOURCE_EXHAUSTED",
        ),
    ],
)
def test_errors_have_the_words_of_the_contract(
    method: str, error: SelvageError, message: str, field: str, status: str
) -> None:
    """Fields of its own messages; the reason stays ours."""
    found = tei_error(f"/tei.v1.{method}", error)
    assert (found.message, found.field, found.status) == (message, field, status)
    assert (found.reason, found.retry_after) == (error.reason, error.retry_after)
