"""The worker's log has a line for each change of a frontend, and none for what one repeats."""

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from gpu_worker.link import attachment
from gpu_worker.link.attachment import FrontendLog
from shared.errors import InvalidInput, LimitExceeded

ATTACHED, WRONG, DETACHED = "frontend attached", "a frontend's message makes no sense", "frontend detached"


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    with capture_logs() as captured:
        yield captured


def events(lines: list[Any], name: str) -> list[str]:
    return [line["event"] for line in lines if line["name"] == name]


def test_a_frontend_that_is_expelled_again_and_again_is_told_once(lines: list[Any]) -> None:
    """Until it stays: then it is news that it attached."""
    log = FrontendLog()
    for _ in range(3):
        log.attached("it")
        log.expelled("it", InvalidInput("no such thing", field="jobs[3]"))
    assert events(lines, "it") == [ATTACHED, WRONG, DETACHED]
    log.attached("it")
    log.detached("it")
    log.attached("it")
    log.detached("it")
    assert events(lines, "it") == [ATTACHED, WRONG, DETACHED, ATTACHED, DETACHED]


def test_each_kind_of_error_and_field_is_told_once(lines: list[Any]) -> None:
    """Whatever the number in the field is."""
    log = FrontendLog()
    log.attached("it")
    for number in range(3):
        log.wrong("it", InvalidInput("no such thing", field=f"jobs[{number}]"))
        log.wrong("it", LimitExceeded("too much", field=f"jobs[{number}]"))
        log.wrong("other", InvalidInput("no such thing", field="jobs[0]"))
    assert events(lines, "it") == [ATTACHED, WRONG, WRONG]
    assert events(lines, "other") == [WRONG]


def test_a_bounded_number_of_frontends_is_remembered(lines: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were heard of last."""
    monkeypatch.setattr(attachment, "REMEMBERED", 2)
    log = FrontendLog()
    for name in ("one", "two", "three", "one", "three"):
        log.wrong(name, InvalidInput("no"))
    assert [len(events(lines, name)) for name in ("one", "two", "three")] == [2, 1, 1]
