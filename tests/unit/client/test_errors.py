"""The errors of the client against the table of the service."""

import pickle

import grpc
import pytest

from selvage import errors
from shared.errors import GivenBack, error_classes


def test_every_reason_of_the_service_has_a_class() -> None:
    """With the same status, and the same place in the tree; what never leaves the services has none."""
    served = {reason: kind for reason, kind in error_classes().items() if kind is not GivenBack}
    assert set(errors.BY_REASON) == set(served)
    for reason, kind in served.items():
        assert errors.BY_REASON[reason].status == kind.status
        assert issubclass(errors.BY_REASON[reason], errors.InvalidInput) == (kind.status == "INVALID_ARGUMENT")
    # Callers who know no gRPC catch what they know.
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
        ("CANCELLED", errors.Unavailable),
        ("INTERNAL", errors.Unavailable),
        ("RESOURCE_EXHAUSTED", errors.Overloaded),
        ("UNIMPLEMENTED", errors.SelvageError),
    ],
)
def test_what_the_transport_says_has_a_class_too(code: str, kind: type[errors.SelvageError]) -> None:
    """By its status alone."""
    error = errors.from_call(Call(grpc.StatusCode[code]), "abc")
    assert (type(error), error.code.name, error.request_id, str(error)) == (kind, code, "abc", code)


@pytest.mark.parametrize(("value", "wait"), [("1500", 1.5), ("0", 0.0), ("-1", None), ("soon", None)])
def test_pushback_says_when(value: str, wait: float | None) -> None:
    """In milliseconds; a negative number, or none, asks not to come back."""
    error = errors.from_call(Call(grpc.StatusCode.RESOURCE_EXHAUSTED, ("grpc-retry-pushback-ms", value)), "")
    assert error.retry_after == wait
    assert type(error) is errors.Overloaded


def test_a_message_over_grpcs_limit_is_no_overload() -> None:
    """It is sent again in halves."""
    details = "CLIENT: Sent message larger than max (67108870 vs. 67108864)"
    assert type(errors.from_call(Call(grpc.StatusCode.RESOURCE_EXHAUSTED, details=details), "")) is errors.LimitExceeded


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
