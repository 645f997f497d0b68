"""What the interceptor of gRPC calls does once, and not for each call: refusals must cost little."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from shared.errors import Overloaded
from shared.load import Estimate
from shared.server.calls import Calls
from shared.server.interceptor import Interceptor
from shared.server.status import details_of


async def answer(*_: object) -> bytes:
    return b""


def refusal(wait: float) -> Overloaded:
    refused = Estimate(wait=wait).refusal(1.0)
    assert refused is not None
    return refused[1]


@pytest.mark.parametrize("method", ["/selvage.v1.A/B", "/grpc.health.v1.Health/Check"])
async def test_a_method_is_looked_up_once(method: str) -> None:
    """Further calls get the same handler, which is not the servicer's own."""
    interceptor, asked = Interceptor(Calls(timeout=60), ThreadPoolExecutor(1)), []
    servicers = grpc.unary_unary_rpc_method_handler(answer)

    async def found(details: Any) -> Any:
        asked.append(details.method)
        return servicers

    details: Any = SimpleNamespace(method=method)
    first, second = [await interceptor.intercept_service(found, details) for _ in range(2)]
    assert asked == [method]
    assert first is second is not servicers


async def test_a_method_that_is_not_there_is_not_remembered() -> None:
    interceptor = Interceptor(Calls(timeout=60), ThreadPoolExecutor(1))

    async def nothing(_: Any) -> None:
        return None

    details: Any = SimpleNamespace(method="/selvage.v1.Nobody/Knows")
    assert await interceptor.intercept_service(nothing, details) is None
    assert not interceptor._handlers


def test_refusals_of_the_same_moment_share_one_status() -> None:
    """A status takes longer to make than all else of a refusal; waits differ by microseconds from call to call."""
    first, second, later = (details_of(refusal(wait)) for wait in (3.0, 3.000001, 3.2))
    assert first is second
    assert first != later
