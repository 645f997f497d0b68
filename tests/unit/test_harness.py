"""What members of a stack are started with; the processes themselves are tests/e2e's."""

from typing import Any

import pytest

from harness import serving
from harness.member import MemberFailed
from harness.stack import worker_flags
from support.commands import run_as_program


def test_a_worker_for_each_device() -> None:
    """On ports one after the other, with what all of them share."""
    shared = {"model": "m", "listen": "[::1]:50061", "device": "auto"}
    assert worker_flags(shared, 1, ["cuda:0", "cuda:1"]) == [
        {"model": "m", "listen": "[::1]:50061", "device": "cuda:0"},
        {"model": "m", "listen": "[::1]:50062", "device": "cuda:1"},
    ]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        (
            "harness",
            "This command has --worker, --frontend and --http (make serve: WORKER=, FRONTEND=, HTTP=).\n",
        ),
        ("demo", ""),
    ],
)
def test_a_service_that_does_not_start_is_told(
    name: str, advice: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a traceback; where a port is taken, with the flags of the command that was typed."""
    told = "gpu_worker did not listen: it ended with status 2\n--listen = 'a:1': the address cannot be bound: In use"

    def fail(main: Any) -> None:
        main.close()
        raise MemberFailed(told)

    monkeypatch.setattr(serving, "run", fail)
    with pytest.raises(SystemExit) as ended:
        run_as_program(name, [])
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"{told}\n{advice}"
