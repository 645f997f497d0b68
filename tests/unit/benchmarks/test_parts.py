"""Which part of a service a stack belongs to."""

import pytest

from benchmarks.parts import LIBRARIES, OTHERS, part

LOOP = "thread (7): MainThread;<module> (frontend_service/__main__.py:89);run (asyncio/runners.py:190)"


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ("Handle._run (asyncio/events.py:80)", LIBRARIES),
        ("answer (shared/calls.py:9);jobs_to_pb (shared/job_codec.py:9);<listcomp> (<string>)", "messages"),
        ("Stream.run (frontend_service/worker/stream.py:5);_write (grpc/aio/_call.py:494)", LIBRARIES),
        ("next_step (gpu_worker/planning/fair_queue.py:3);heappush (heapq.py:1)", "planning"),
        ("read (frontend_service/models.py:3)", OTHERS),
    ],
)
def test_the_innermost_file_of_ours_decides(frames: str, expected: str) -> None:
    """Unless a library that has a part of its own is at work."""
    assert part(f"{LOOP};{frames}") == expected
