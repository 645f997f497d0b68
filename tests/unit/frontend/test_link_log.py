"""The frontend's log has a line for each change of a worker, and none for what one repeats."""

from collections.abc import Iterator
from typing import Any

import fakes
import pytest
from structlog.testing import capture_logs

from frontend_service.workers.job_stream import WrongReply
from frontend_service.workers.link import SETTLED_SECONDS, LinkLog

READY, NOT_READY, WRONG = "worker ready", "worker not ready", "a worker's reply does not fit"


class Clock:
    """A time that only a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def link_log(clock: Clock) -> LinkLog:
    return LinkLog("10.0.0.7:50061", clock)


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    with capture_logs() as captured:
        yield captured


def events(lines: list[Any]) -> list[str]:
    return [line["event"] for line in lines]


def test_a_worker_that_attaches_and_ends_again_and_again_is_told_once(link_log: LinkLog, lines: list[Any]) -> None:
    """Until it answers a job: then it is news that it is ready."""
    for _ in range(3):
        link_log.attached(fakes.card(), "an instance")
        link_log.ended("it ended the link", sound=True)
    assert events(lines) == [READY, NOT_READY]
    link_log.attached(fakes.card(), "an instance")
    link_log.answered()
    link_log.answered()
    link_log.ended("it ended the link", sound=True)
    assert events(lines) == [READY, NOT_READY] * 2


@pytest.mark.parametrize(("sound", "told"), [(True, [READY, NOT_READY, READY]), (False, [READY, NOT_READY])])
def test_a_link_that_lasted_counts_unless_a_wrong_message_ended_it(
    link_log: LinkLog, clock: Clock, lines: list[Any], sound: bool, told: list[str]
) -> None:
    link_log.attached(fakes.card(), "an instance")
    clock.now += SETTLED_SECONDS + 1
    link_log.ended("it went", sound=sound)
    link_log.attached(fakes.card(), "an instance")
    assert events(lines) == told


def test_why_it_is_not_ready_is_told_at_each_change(link_log: LinkLog, lines: list[Any]) -> None:
    for why in ("it loads", "it loads", "nothing listens", "it loads"):
        link_log.ended(why, sound=False)
    assert [line["why"] for line in lines] == ["it loads", "nothing listens", "it loads"]


def test_a_wrong_reply_is_told_once_for_each_reason_and_process(link_log: LinkLog, lines: list[Any]) -> None:
    """The numbers in it do not count, and a worker that was started again is another."""
    link_log.attached(fakes.card(), "an instance")
    for number in range(3):
        link_log.wrong_reply(WrongReply("it sent less", f"{number} bytes"))
        link_log.wrong_reply(WrongReply("it sent more", f"{number} bytes"))
    assert events(lines) == [READY, WRONG, WRONG]
    assert lines[1]["why"] == "it sent less (0 bytes)"
    link_log.answered()
    link_log.attached(fakes.card(), "another instance")
    link_log.wrong_reply(WrongReply("it sent less"))
    assert events(lines) == [READY, WRONG, WRONG, READY, WRONG]
