"""The error tree and the status table."""

import unicodedata

import grpc
import pytest
from google.rpc import error_details_pb2
from hypothesis import example, given
from hypothesis import strategies as st

from frontend_service.api.selvage_v1.embed_stream import stream_error_to_pb
from frontend_service.api.streams import NotRead
from frontend_service.api.tei_v1.tei_servicers import tei_error
from shared.errors import DeadlineExceeded, Internal, Overloaded, error_classes
from shared.server.status import message_of, to_status
from shared.value_codec import error_from_pb, error_to_pb

TURNING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
"""Classes of letters that turn the order of those behind them."""


def test_a_class_of_its_own_is_told_as_its_base() -> None:
    """NotRead ends a stream where it is raised; a worker's DEADLINE_EXCEEDED is not one."""
    assert issubclass(NotRead, DeadlineExceeded)
    assert error_classes()[NotRead.reason] is DeadlineExceeded


@pytest.mark.parametrize("reason", error_classes())
def test_every_error_names_a_status_of_grpc(reason: str) -> None:
    error = error_classes()[reason]("what happened", field="texts[3]")
    status = to_status(error)
    assert status.code == grpc.StatusCode[error.status].value[0]
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == (reason, "selvage")


@pytest.mark.parametrize("reason", error_classes())
def test_an_error_survives_the_way_from_the_worker(reason: str) -> None:
    sent = error_classes()[reason]("what happened", field="texts[3]", retry_after=1.5)
    received = error_from_pb(error_to_pb(sent))
    assert type(received) is type(sent)
    assert (received.message, received.field, received.retry_after) == ("what happened", "texts[3]", 1.5)


@given(st.text(st.characters()), st.text(st.characters()))
@example("\x1b[31mred\r\nnext\0\x7f\x9b\u202e\ud800", "\x1btexts")
def test_no_error_that_leaves_controls_a_terminal(message: str, field: str) -> None:
    """Wherever it holds words: in its status, in the details, in metadata, and in the words of other APIs."""
    error = Internal(message, field=field)
    status = to_status(error)
    bad = error_details_pb2.BadRequest()
    assert all(detail.Unpack(bad) or not detail.Is(bad.DESCRIPTOR) for detail in status.details)
    words = [status.message, message_of(error), tei_error("/tei.v1.Embed/Embed", error).message]
    words += [each for violation in bad.field_violations for each in (violation.field, violation.description)]
    words += [stream_error_to_pb(error).message, stream_error_to_pb(error).field]
    letters = set("".join(words))
    assert not {unicodedata.category(letter) for letter in letters} & {"Cc", "Cs", "Zl", "Zp"}
    assert not {unicodedata.bidirectional(letter) for letter in letters} & TURNING
    for kept in ("é 漢 𝄞 ok", "क्\u200dष", "👩\u200d💻"):
        assert message_of(Internal(kept)) == kept


def test_overload_tells_when_to_try_again() -> None:
    details = to_status(Overloaded("full", retry_after=2.0)).details
    assert [each.type_url.rpartition(".")[2] for each in details] == ["ErrorInfo", "RetryInfo"]
