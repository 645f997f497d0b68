"""What commands refuse: a flag that does not exist, with the nearest one that does, and a value that makes no sense."""

import re
import sys
from collections.abc import Callable
from functools import partial

import pytest

from frontend_service.access import new_key
from frontend_service.settings import FrontendSettings
from gpu_worker.kernels.cpu import build
from gpu_worker.settings import WorkerSettings
from harness.environment import ROOT
from selvage.bulk.flags import parse
from shared.command import begin
from shared.settings import ServiceSettings
from support.commands import process_as_it_was, run_as_program

Command = Callable[[list[str]], object]


def refusal(command: Command, arguments: list[str], printed: pytest.CaptureFixture[str]) -> str:
    """The line with which a command ends with status 2."""
    with pytest.raises(SystemExit) as ended:
        command(arguments)
    assert ended.value.code == 2
    (line,) = printed.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("command", "name", "arguments", "told"),
    [
        (FrontendSettings.read, "frontend_service", ["--listn", "h:1"], "--listn; did you mean --listen?"),
        (FrontendSettings.read, "frontend_service", ["--http_listen=x"], "--http_listen; did you mean --http-listen?"),
        (WorkerSettings.read, "gpu_worker", ["--modle", "minilm"], "--modle; did you mean --model?"),
        (WorkerSettings.read, "gpu_worker", ["--zzz"], "--zzz"),
        (WorkerSettings.read, "gpu_worker", ["minilm"], "minilm"),
        (new_key.main, "frontend_service.access.new_key", ["--prority", "bulk"], "--prority; did you mean --priority?"),
        (build.main, "gpu_worker.kernels.cpu.build", ["--al"], "--al; did you mean --all?"),
        (parse, "selvage.bulk", ["a.jsonl", "--ouput", "o"], "--ouput; did you mean --output?"),
        (partial(run_as_program, "harness"), "harness", ["--frontent", "x"], "--frontent; did you mean --frontend?"),
        (partial(run_as_program, "demo"), "demo", ["--modl", "x"], "--modl; did you mean --model?"),
    ],
)
def test_an_unknown_flag_is_refused_with_the_nearest(
    command: Command, name: str, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, and before one that is missing, which may be the same."""
    line = refusal(command, arguments, capsys)
    assert line == f"python -m {name}: unrecognized arguments: {told} (--help explains)"


@pytest.mark.parametrize(
    ("command", "variable", "value", "told"),
    [
        (FrontendSettings.read, "SELVAGE_FRONTEND_LISTEN", "nowhere", "--listen = 'nowhere': must be HOST:PORT"),
        (FrontendSettings.read, "SELVAGE_FRONTEND_HTTP_LISTEN", "8080", "--http-listen = '8080': must be HOST:PORT"),
        (WorkerSettings.read, "SELVAGE_WORKER_QUEUE_SECONDS", "-1", "--queue-seconds = '-1': Input should be"),
    ],
)
def test_a_bad_value_stops_the_start_wherever_it_comes_from(
    command: Command,
    variable: str,
    value: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, value)
    assert refusal(command, [], capsys).startswith(told)


def test_a_variable_that_is_no_setting_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes sets some that begin like ours, and a rollback may find those of a later version."""
    monkeypatch.setenv("SELVAGE_FRONTEND_PORT", "tcp://10.0.0.1:50051")
    assert FrontendSettings.read([]).listen == "127.0.0.1:50051"


@pytest.mark.parametrize("command", [FrontendSettings, WorkerSettings])
def test_the_help_of_a_service_fits_two_screens(
    command: type[ServiceSettings], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    with pytest.raises(SystemExit):
        command.read(["--help"])
    assert len(capsys.readouterr().out.splitlines()) <= 100


def test_the_two_processes_of_the_readme_open_http(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calls by curl then work with them too, and the worker listens where the frontend looks for it."""
    readme = (ROOT / "README.md").read_text()
    worker, frontend = re.findall(r"^python -m (?:gpu_worker|frontend_service) +(--.*)$", readme, flags=re.MULTILINE)
    settings = FrontendSettings.read(frontend.split())
    assert f"curl -s {settings.http_listen}/" in readme
    assert (WorkerSettings.read(worker.split()).listen,) == settings.worker


@pytest.mark.parametrize("module", ["_sqlite3", "gpu_worker.misspelt", None])
def test_a_module_that_no_extra_brings_keeps_its_traceback(
    module: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part of Python is missing, or it is a bug of ours."""
    with process_as_it_was():
        begin("worker")
        sys.excepthook(ModuleNotFoundError, ModuleNotFoundError("No module", name=module), None)
    assert capsys.readouterr().err == "ModuleNotFoundError: No module\n"
