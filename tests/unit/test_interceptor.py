"""What the interceptor of gRPC calls does once, and not for each call: refusals must cost little."""

from shared.errors import Overloaded
from shared.load import Estimate
from shared.server.status import details_of


def refusal(wait: float) -> Overloaded:
    refused = Estimate(wait=wait).refusal(1.0)
    assert refused is not None
    return refused[1]


def test_refusals_of_the_same_moment_share_one_status() -> None:
    """A status takes longer to make than all else of a refusal; waits differ by microseconds from call to call."""
    first, second, later = (details_of(refusal(wait)) for wait in (3.0, 3.000001, 3.2))
    assert first is second
    assert first != later
