"""Nobody holds more of what callers share than is left for others: streams, and room for small requests."""

import asyncio
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.caller import Caller, Quota, caller_of, host_of
from shared.errors import Overloaded, Unauthenticated
from shared.security.trusted_proxies import TrustedProxies
from shared.server import calls as calls_module
from shared.server.admission import Admission, Bounds
from shared.server.admission.shares import Shares
from shared.server.calls import Calls

STREAMS = 64


def opened_by(calls: Calls, caller: Caller, streams: ExitStack) -> int:
    """How many streams a caller opens until it is refused, named with its reason."""
    for count in range(2 * STREAMS):
        try:
            streams.enter_context(calls.stream(caller))
        except Overloaded:
            return count
    raise AssertionError("nobody was refused")


def calling(host: str, key: str = "") -> Caller:
    headers = [("selvage-key", key)] if key else []
    return caller_of("m", "id", headers, host=host_of(host), remaining=None)


@given(st.integers(1, 200), st.lists(st.integers(0, 9), max_size=400))
def test_whoever_comes_finds_a_place_as_long_as_there_is_one(most: int, callers: list[int]) -> None:
    """And nobody ever holds more than was left when it took its last place."""
    shares = Shares(most)
    with ExitStack() as places:
        for number in callers:
            caller = str(number)
            if shares.has_share(caller) or not shares.left:
                assert shares.held(caller) or not shares.left
                continue
            assert shares.held(caller) < shares.left
            places.enter_context(shares.taken(caller))
        assert shares.total <= most
    assert (shares.total, shares.left) == (0, most)


async def test_one_caller_leaves_half_of_the_streams_to_others() -> None:
    """Nine more find theirs; what has ended makes room again."""
    calls = Calls(timeout=600, bounds=Bounds(streams=STREAMS))
    with ExitStack() as greedy, ExitStack() as honest:
        assert opened_by(calls, calling("10.0.0.1"), greedy) == STREAMS // 2
        for number in range(2, 11):
            honest.enter_context(calls.stream(calling(f"10.0.0.{number}")))
        with pytest.raises(Overloaded, match="this caller has 32 open streams, for all others 23 are left of 64"):
            greedy.enter_context(calls.stream(calling("10.0.0.1")))
    assert calls.admission.refused["share"] == 2
    assert len(calls.admission.streams) == 0
    with calls.stream(calling("10.0.0.1")):
        pass


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_a_key_has_no_more_streams_than_its_limit(limit: int) -> None:
    """However many there may be in all; requests have a limit of their own."""
    caller = Caller(method="m", request_id="id", key="k", quota=Quota(1), stream_quota=Quota(limit))
    calls = Calls(timeout=600, bounds=Bounds(streams=STREAMS), identify=lambda caller: caller)
    with ExitStack() as streams:
        assert opened_by(calls, caller, streams) == limit
        with pytest.raises(Overloaded, match=f"this API key has {limit} open streams, the limit is {limit}"):
            streams.enter_context(calls.stream(caller))
        with calls.running(caller):
            pass
    assert calls.admission.refused["quota"] == 2


@pytest.mark.parametrize(
    ("proxies", "first_has", "second_has"),
    [((), 32, 0), (("10.0.0.1",), 32, 16), (("10.0.0.0/8",), 32, 16), (("10.9.0.0/16",), 32, 0)],
)
async def test_a_proxy_tells_its_callers_apart(proxies: tuple[str, ...], first_has: int, second_has: int) -> None:
    """Only one that is trusted: another caller could call itself anything, and take a share under each name."""
    calls = Calls(timeout=600, bounds=Bounds(streams=STREAMS), proxies=TrustedProxies(proxies))
    with ExitStack() as streams:
        assert opened_by(calls, calling("10.0.0.1", "first"), streams) == first_has
        assert opened_by(calls, calling("10.0.0.1", "second"), streams) == second_has
        assert opened_by(calls, calling("192.168.0.1", "first"), streams) > 0


async def test_an_api_key_has_one_share_from_all_addresses() -> None:
    calls = Calls(timeout=600, bounds=Bounds(streams=STREAMS), identify=lambda caller: caller)
    with ExitStack() as streams:
        assert opened_by(calls, calling("10.0.0.1", "tenant"), streams) == STREAMS // 2
        assert opened_by(calls, calling("10.0.0.2", "tenant"), streams) == 0
        assert opened_by(calls, calling("10.0.0.1", "another"), streams) == STREAMS // 4


@pytest.mark.parametrize(
    ("address", "is_one"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("11.1.2.3", False),
        ("fd00::7", True),
        ("fe80::1%eth0", False),
        ("", False),
        ("unix", False),
    ],
)
def test_addresses_of_trusted_proxies(address: str, is_one: bool) -> None:
    """IPv4 also in the form that a port for both shows."""
    assert (address in TrustedProxies(["10.0.0.0/8", "fd00::/8"])) is is_one


async def test_a_caller_that_is_no_longer_accepted_loses_its_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, whatever they wait for, with its reason; those of others go on."""
    monkeypatch.setattr(calls_module, "ACCEPT_SECONDS", 0.01)
    revoked = set[str]()
    calls = Calls(timeout=600, identify=lambda caller: caller, accepts=lambda caller: caller.key not in revoked)
    opened = [asyncio.Event() for _ in range(2)]
    over = asyncio.Event()

    async def stream(key: str, place: int) -> str:
        try:
            with calls.stream(calling("10.0.0.1", key)):
                opened[place].set()
                await over.wait()
        except Unauthenticated as error:
            return f"{error.field}: {error.message}"
        return "ended by itself"

    bad, good = (asyncio.create_task(stream(key, place)) for place, key in enumerate(("bad", "good")))
    await asyncio.gather(*(event.wait() for event in opened))
    revoked.add("bad")
    assert await bad == "authorization: the API key is no longer known"
    over.set()
    assert await good == "ended by itself"
    assert calls.admission.refused["unauthenticated"] == 1


async def test_the_largest_request_of_one_leaves_room_for_small_ones_of_others() -> None:
    """One that takes all the bytes there are, in requests, results and replies that are not read."""
    bounds = Bounds()
    admission, small = Admission(bounds), bounds.size // 64
    with admission.request(), admission.hold(bounds.size):
        admission.reserve(bounds.results)
        release = admission.hold_reply(bounds.unread)
        with ExitStack() as others:
            for _ in range(16):
                others.enter_context(admission.request())
                others.enter_context(admission.hold(small))
                admission.reserve(small)
                others.callback(admission.hold_reply(small))
            with pytest.raises(Overloaded), admission.hold(small):
                pass
            with pytest.raises(Overloaded):
                admission.reserve(small)
            with pytest.raises(Overloaded):
                admission.hold_reply(small)
        with admission.request():
            with pytest.raises(Overloaded), admission.hold(small + 1):
                pass
            with pytest.raises(Overloaded):
                admission.reserve(small + 1)
            with pytest.raises(Overloaded):
                admission.hold_reply(small + 1)
        release()
    assert (admission.size, admission.results, admission.unread) == (0, 0, 0)


async def test_a_request_that_grows_is_no_longer_small() -> None:
    """Else a large one that comes in small parts would take the room of the small ones."""
    bounds = Bounds()
    admission, part = Admission(bounds), bounds.size // 256
    with admission.hold(bounds.size), admission.holding() as holding:
        for _ in range(4):
            holding.add(part)
        with pytest.raises(Overloaded):
            holding.add(part)
