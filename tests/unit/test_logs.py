"""What lines of the log look like to whoever reads them."""

import io
import sys
from collections.abc import Iterator

import pytest
import structlog

from shared import reporting


@pytest.fixture
def unconfigured() -> Iterator[None]:
    """Other tests log as structlog does by itself."""
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("unconfigured")
@pytest.mark.parametrize("console", [False, True])
def test_a_line_controls_no_terminal(console: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever another process said, also in a trace; a line is one line, and a trace has its own."""
    wild = "\x1b[31mred\r\nnext\0\x9b\u202e"
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    reporting.configure("info", console=console)
    structlog.get_logger("test").warning("worker not ready", why=wild)
    try:
        raise ValueError(wild)
    except ValueError as error:
        structlog.get_logger("test").error("bug", exc_info=error)
    first, *trace = stream.getvalue().splitlines()
    assert "red" in first
    assert "next" in first
    assert ("Traceback" in trace[0]) is not console
    assert any("ValueError: " in line and "red" in line for line in trace)
    assert all(line.isprintable() for line in (first, *trace))
