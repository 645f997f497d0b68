"""Both clients against a frontend that refuses, is late, or is not there: classes, places, tries, deadlines."""

import math
import time

import pytest

from selvage import errors
from shared import errors as served
from support.fake_frontend import KINDS, FakeFrontend, connected, texts

pytestmark = pytest.mark.parametrize("kind", KINDS)
MANY = texts(1300)


@pytest.mark.parametrize(
    ("error", "times"),
    [
        (served.Overloaded("full", retry_after=0.01), 3),
        (served.WorkerUnavailable("gone"), 3),
        (served.Overloaded("full", retry_after=0.01), 1),
        (served.InputTooLarge("no room"), 1),
        (served.Internal("a bug"), 1),
        (served.InputTooLong("long", field="texts[0]"), 1),
        (served.UnknownModel("who", field="model"), 1),
        (served.DeadlineExceeded("late"), 1),
    ],
)
async def test_errors_have_their_class_and_tries_are_bounded(
    fake: FakeFrontend, kind: str, error: served.SelvageError, times: int
) -> None:
    """Message, reason, field, wait and request id are the service's."""
    fake.refuse = lambda _: error
    async with connected(kind, fake.address, retries=times - 1) as client:
        with pytest.raises(errors.BY_REASON[error.reason]) as raised:
            await client.embed(["a"])
    refusal = raised.value
    assert (str(refusal), refusal.reason, refusal.field, refusal.retry_after) == (
        error.message,
        error.reason,
        error.field,
        error.retry_after,
    )
    assert refusal.code.name == error.status
    assert refusal.request_id == fake.metadata[-1]["x-request-id"]
    assert len(fake.asked) == times


@pytest.mark.parametrize("where", ["client", "call"])
async def test_a_deadline_covers_all_parts(fake: FakeFrontend, kind: str, where: str) -> None:
    """No part begins anew with all of it."""
    fake.seconds = 0.2  # each of three parts, so that a deadline of each part would not pass
    options = {"timeout": 0.35} if where == "client" else {}
    async with connected(kind, fake.address, in_flight=1, **options) as client:
        start = time.monotonic()
        with pytest.raises(TimeoutError) as raised:
            await client.embed(MANY, **({"timeout": 0.35} if where == "call" else {}))
        assert time.monotonic() - start > 0.32
        assert isinstance(raised.value, errors.DeadlineExceeded)
        assert len(fake.asked) < 3
        assert (await client.embed("a", timeout=math.inf)).shape == (3,)
