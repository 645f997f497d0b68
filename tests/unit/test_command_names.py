"""A flag or an environment variable that does not exist is refused, with the nearest one that does."""

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
from shared.settings import OF_KUBERNETES
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
    ],
)
def test_an_unknown_flag_is_refused_with_the_nearest(
    command: Command, name: str, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, and before one that is missing, which may be the same."""
    line = refusal(command, arguments, capsys)
    assert line == f"python -m {name}: unrecognized arguments: {told} (--help explains)"


@pytest.mark.parametrize(
    ("name", "flag", "near"), [("harness", "--frontent", "--frontend"), ("demo", "--modl", "--model")]
)
def test_programs_that_start_services_do_so_too(
    name: str, flag: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before they start anything."""
    line = refusal(partial(run_as_program, name), [flag, "x"], capsys)
    assert line == f"python -m {name}: unrecognized arguments: {flag}; did you mean {near}? (--help explains)"


@pytest.mark.parametrize(
    ("command", "variable", "near"),
    [
        (FrontendSettings.read, "SELVAGE_FRONTEND_LISTN", "SELVAGE_FRONTEND_LISTEN"),
        (FrontendSettings.read, "selvage_frontend_htp_listen", "SELVAGE_FRONTEND_HTTP_LISTEN"),
        (FrontendSettings.read, "SELVAGE_LISTEN", "SELVAGE_FRONTEND_LISTEN"),
        (FrontendSettings.read, "SELVAGE_FRONTED_WORKER", "SELVAGE_FRONTEND_WORKER"),
        (FrontendSettings.read, "SELVAGE_FRONTEND_XYZ", ""),
        (FrontendSettings.read, "SELVAGE_FRONTEND_PORT", ""),
        (WorkerSettings.read, "SELVAGE_WORKER_MODLE", "SELVAGE_WORKER_MODEL"),
        (WorkerSettings.read, "SELVAGE_MODEL", "SELVAGE_WORKER_MODEL"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest(
    command: Command, variable: str, near: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the service would run with the default, and nobody would know why."""
    monkeypatch.setenv(variable, "127.0.0.1:1")
    meant = f"; did you mean {near}?" if near else ""
    assert refusal(command, [], capsys) == f"{variable} is no setting{meant} (--help lists them as flags)"


def test_variables_of_others_are_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the other service, of the client, of Kubernetes, which has a service of that name, and of anybody."""
    for name in (
        *("SELVAGE_WORKER_MODEL", "SELVAGE_WORKER_MODLE", "SELVAGE_KEY", "SELVAGE_SOAK_SECONDS", "SELVAGE_MODEL"),
        *("SELVAGE_FRONTEND_SERVICE_HOST", "SELVAGE_FRONTEND_SERVICE_PORT", "SELVAGE_FRONTEND_SERVICE_PORT_GRPC"),
        *("SELVAGE_FRONTEND_PORT", "SELVAGE_FRONTEND_PORT_50051_TCP", "SELVAGE_FRONTEND_PORT_50051_TCP_PROTO"),
        *("SELVAGE_FRONTEND_PORT_50051_TCP_PORT", "SELVAGE_FRONTEND_PORT_50051_TCP_ADDR", "SELVAGE_PORT"),
    ):
        monkeypatch.setenv(name, "tcp://10.0.0.1:50051")
    assert FrontendSettings.read([]).listen == "127.0.0.1:50051"


def test_no_setting_looks_like_a_variable_of_kubernetes() -> None:
    """Or a misspelt one would pass."""
    names = [name.upper() for command in (FrontendSettings, WorkerSettings) for name in command.model_fields]
    assert [name for name in names if OF_KUBERNETES.match(f"SELVAGE_WORKER_{name}=tcp://10.0.0.1:1")] == []


def http_flags(*arguments: str) -> tuple[str, ...]:
    """The APIs that a frontend serves with these flags."""
    return FrontendSettings.read(list(arguments)).apis


def test_an_address_for_http_turns_http_on() -> None:
    """Nobody names an address at which nothing is to listen."""
    assert http_flags() == ("grpc", "tei")
    assert http_flags("--http-listen", "127.0.0.1:8080") == ("grpc", "tei", "http")
    assert http_flags("--http-listen", "127.0.0.1:0", "--apis", "http") == ("http",)


def test_an_address_for_http_without_it_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Where the APIs were chosen, by a flag or by a variable."""
    line = refusal(FrontendSettings.read, ["--http-listen", "127.0.0.1:0", "--apis", "grpc"], capsys)
    assert line == "--http-listen needs the HTTP API, and --apis is grpc: add http to it"


def test_the_two_processes_of_the_readme_open_http(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calls by curl then work with them too, and the worker listens where the frontend looks for it."""
    readme = (ROOT / "README.md").read_text()
    worker, frontend = re.findall(r"^python -m (?:gpu_worker|frontend_service) +(--.*)$", readme, flags=re.MULTILINE)
    settings = FrontendSettings.read(frontend.split())
    assert "http" in settings.apis
    assert f"curl -s {settings.http_listen}/" in readme
    assert (WorkerSettings.read(worker.split()).listen,) == settings.worker


def test_an_error_that_is_no_missing_package_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """A bug of ours must be seen where it is."""
    with process_as_it_was():
        begin("worker")
        sys.excepthook(KeyError, KeyError("why"), None)
    assert capsys.readouterr().err == "KeyError: 'why'\n"
