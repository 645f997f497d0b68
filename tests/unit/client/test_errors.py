"""The client's errors against the service's table."""

import pickle

import grpc
import pytest
from grpc_status import rpc_status

from selvage import errors
from selvage.v1.embedding_pb2 import StreamError
from shared import errors as served
from shared.errors import GivenBack, error_classes
from shared.server.status import to_status


def test_every_reason_of_the_service_has_a_class() -> None:
    """With the same status, and the same place in the tree; what never leaves the services has none."""
    told = {reason: kind for reason, kind in error_classes().items() if kind is not GivenBack}
    assert set(errors.BY_REASON) == set(told)
    for reason, kind in told.items():
        assert errors.BY_REASON[reason].status == kind.status
        assert issubclass(errors.BY_REASON[reason], errors.InvalidInput) == (kind.status == "INVALID_ARGUMENT")


def test_errors_are_those_of_python_as_well() -> None:
    """Callers who know no gRPC catch what they know."""
    assert issubclass(errors.InvalidInput, ValueError)
    assert issubclass(errors.DeadlineExceeded, TimeoutError)
    assert issubclass(errors.Unavailable, ConnectionError)


@pytest.mark.parametrize("kind", [*errors.BY_REASON.values(), errors.Cancelled])
def test_an_error_survives_pickling(kind: type[errors.SelvageError]) -> None:
    """It may cross processes."""
    error = kind("what", field="texts[3]", retry_after=1.5, request_id="abc")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert vars(again) == vars(error)
    assert str(again) == "what"


class Call:
    """A failed call as gRPC tells it."""

    def __init__(self, code: grpc.StatusCode, *trailers: tuple[str, str], details: str = "") -> None:
        self._code, self._trailers, self._details = code, trailers, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._trailers


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("UNAVAILABLE", errors.Unavailable),
        ("DEADLINE_EXCEEDED", errors.DeadlineExceeded),
        ("UNAUTHENTICATED", errors.Denied),
        ("PERMISSION_DENIED", errors.Denied),
        ("CANCELLED", errors.Cancelled),
        ("RESOURCE_EXHAUSTED", errors.Overloaded),
        ("UNIMPLEMENTED", errors.SelvageError),
    ],
)
def test_what_the_transport_says_has_a_class_too(code: str, kind: type[errors.SelvageError]) -> None:
    """By its status alone."""
    error = errors.from_call(Call(grpc.StatusCode[code]), "abc")
    assert (type(error), error.code.name, error.request_id, str(error)) == (kind, code, "abc", code)


@pytest.mark.parametrize(("told", "wait"), [("1500", 1.5), ("0", 0.0), ("-1", None), ("soon", None)])
def test_pushback_says_when(told: str, wait: float | None) -> None:
    """In milliseconds; a negative number, or none, asks not to come back."""
    error = errors.from_call(Call(grpc.StatusCode.RESOURCE_EXHAUSTED, ("grpc-retry-pushback-ms", told)), "")
    assert error.retry_after == wait
    assert type(error) is errors.Overloaded


def test_a_message_over_grpcs_limit_is_no_overload() -> None:
    """It is sent again in halves."""
    told = "CLIENT: Sent message larger than max (67108870 vs. 67108864)"
    assert type(errors.from_call(Call(grpc.StatusCode.RESOURCE_EXHAUSTED, details=told), "")) is errors.LimitExceeded


@pytest.mark.parametrize(
    ("field", "places", "shifted"),
    [
        ("texts[3]", {"texts": 512}, "texts[515]"),
        ("documents[0]", {"texts": 512, "documents": 7}, "documents[7]"),
        ("queries[1].data", {"queries": 2}, "queries[3].data"),
        ("texts[3]", {"texts": 0}, "texts[3]"),
        ("outputs[1]", {"texts": 512}, "outputs[1]"),
        ("texts", {"texts": 512}, "texts"),
        ("", {"texts": 512}, ""),
    ],
)
def test_places_count_in_the_whole_input(field: str, places: dict[str, int], shifted: str) -> None:
    """In the field and in the message; everything else stays."""
    error = errors.InputTooLong(f"{field} is too long", field=field, request_id="abc").shifted(places)
    assert (type(error), error.field, error.request_id) == (errors.InputTooLong, shifted, "abc")
    assert str(error) == f"{shifted} is too long"


@pytest.mark.parametrize("code", ["INTERNAL", "UNKNOWN", "CANCELLED", "UNAVAILABLE"])
def test_a_stream_that_broke_is_worth_another_one(code: str) -> None:
    """Whatever the transport calls it; what the service itself told stays what it is."""
    error = errors.from_ended_stream(Call(grpc.StatusCode[code]), "abc")
    assert (type(error), error.code.name) == (errors.Unavailable, code)
    told = rpc_status.to_status(to_status(served.Internal("a bug"))).trailing_metadata
    assert type(errors.from_ended_stream(Call(grpc.StatusCode.INTERNAL, *told), "abc")) is errors.Internal
    assert type(errors.from_ended_stream(Call(grpc.StatusCode.INVALID_ARGUMENT), "abc")) is errors.InvalidInput


def test_a_batch_of_a_stream_fails_alike() -> None:
    """With class, wait and field."""
    message = StreamError(code=8, reason="OVERLOADED", message="full")
    message.retry_after.FromMilliseconds(250)
    error = errors.from_stream(message, "abc")
    assert (type(error), error.retry_after, error.code.name) == (errors.Overloaded, 0.25, "RESOURCE_EXHAUSTED")
    long = errors.from_stream(StreamError(code=3, reason="INPUT_TOO_LONG", message="long", field="texts[1]"), "abc")
    assert (type(long), long.retry_after, long.field) == (errors.InputTooLong, None, "texts[1]")
