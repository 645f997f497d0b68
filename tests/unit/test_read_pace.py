"""How fast one caller's large requests are read: by a clock of its own."""

import asyncio

from shared.server.admission.read_pace import LOOK, RECENT, ReadPace
from shared.server.admission.reads import LARGE_REQUEST
from support.clockwork import in_no_time

RATE = LARGE_REQUEST / 2  # a large request is followed by two seconds


async def read(pace: ReadPace, caller: str, size: int, seconds: float = 0.0) -> float:
    """Reads a request that takes so long to arrive. Returns when the reading began."""
    turn = await pace.wait(caller)
    began = asyncio.get_running_loop().time()
    await asyncio.sleep(seconds)
    pace.arrived(caller, size, turn)
    return began


async def asking(pace: ReadPace, caller: str) -> None:
    """Sends small requests for ever, which never wait."""
    while True:
        before = asyncio.get_running_loop().time()
        assert await read(pace, caller, 100) == before
        await asyncio.sleep(RECENT / 2)


@in_no_time
async def test_after_a_large_request_its_caller_waits_while_others_ask() -> None:
    """For as long as its bytes take at the pace, whatever it sends next; others never wait."""
    pace = ReadPace(RATE)
    others = asyncio.create_task(asking(pace, "other"))
    await asyncio.sleep(0)
    assert [await read(pace, "big", LARGE_REQUEST) for _ in range(3)] == [0, 2, 4]
    assert await read(pace, "big", 100) == 6
    assert await read(pace, "big", 100) == 6
    others.cancel()


@in_no_time
async def test_who_is_alone_never_waits() -> None:
    """Nor does a caller whose only companions have stopped to ask, longer than it takes to notice."""
    pace = ReadPace(RATE)
    await read(pace, "big", LARGE_REQUEST)
    assert [await read(pace, "big", LARGE_REQUEST) for _ in range(2)] == [RECENT, RECENT]
    assert await pace.wait("other") == 0
    assert await read(pace, "big", LARGE_REQUEST) == 2 * RECENT
    assert await read(pace, "big", LARGE_REQUEST) == 2 * RECENT


@in_no_time
async def test_requests_that_wait_together_are_read_one_after_the_other() -> None:
    """Each large one keeps its distance; after a small one the next begins at the next look."""
    pace = ReadPace(RATE)
    await read(pace, "big", LARGE_REQUEST)
    others = asyncio.create_task(asking(pace, "other"))
    large = [asyncio.create_task(read(pace, "big", LARGE_REQUEST, 1.0)) for _ in range(2)]
    assert [round(began) for began in await asyncio.gather(*large)] == [2, 5]
    small = [asyncio.create_task(read(pace, "big", 100)) for _ in range(3)]
    begun = await asyncio.gather(*small)
    assert all(7.9 < began < 8.1 + 3 * LOOK for began in begun), begun
    others.cancel()


@in_no_time
async def test_without_a_pace_nobody_waits() -> None:
    """As in a worker, where all large messages are those of a few frontends."""
    pace = ReadPace(float("inf"))
    others = asyncio.create_task(asking(pace, "other"))
    await asyncio.sleep(0)
    assert [await read(pace, "big", LARGE_REQUEST) for _ in range(3)] == [0, 0, 0]
    others.cancel()


@in_no_time
async def test_callers_without_large_requests_are_forgotten() -> None:
    """So any number of callers takes no memory."""
    pace = ReadPace(RATE)
    for number in range(5):
        await read(pace, f"big {number}", LARGE_REQUEST)
        await asyncio.sleep(10)
    assert len(pace._paces) == 1
