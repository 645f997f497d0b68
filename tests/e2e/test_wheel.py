"""The wheels of the whole and of the client alone, each in an environment that has nothing but what it requires."""

import asyncio
import re
import zipfile
from pathlib import Path

import pytest

from harness.environment import ROOT
from harness.stack import Stack
from support.environments import CLIENT_SOURCES, built_wheel, link, unpacked

NEEDS = {"grpcio", "protobuf", "googleapis-common-protos", "numpy"}
"""What the client requires."""
INDIRECT_NEEDS = {"typing-extensions"}
"""What the client's requirements require in turn."""
CLIENT_FILES = {
    "selvage/__init__.pyi",
    "selvage/py.typed",
    "selvage/client.py",
    "selvage/bulk/__main__.py",
    "selvage/v1/embedding_pb2.pyi",
    "selvage/worker/v1/worker_pb2.py",
}
PLAYGROUND = ROOT / "frontend_service" / "api" / "http" / "playground"
CALLS = """
import sys
from selvage import Client, InvalidInput
from selvage.v1 import embedding_pb2
with Client(sys.argv[1]) as client:
    rows = client.embed(["a quiet harbour", "a loud kitchen"])
    best = client.rerank("boats", ["a quiet harbour", "a loud kitchen"], top_n=1)
    streamed = list(client.embed_stream(["a quiet harbour"]))
    try:
        client.embed("a", dimensions=10_000)
    except InvalidInput as error:
        print(rows.shape, len(best), len(streamed), error.field, embedding_pb2.EmbedRequest.__name__)
"""
ENGINE = """
import selvage
try:
    selvage.Engine
except ImportError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def client_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install ./client` installs."""
    copy, out = tmp_path_factory.mktemp("client"), tmp_path_factory.mktemp("wheel")
    return built_wheel(copy, out, project=ROOT / "client", sources=CLIENT_SOURCES)


@pytest.fixture(scope="module")
def client_environment(client_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the client and what it requires."""
    environment = tmp_path_factory.mktemp("client-alone") / "empty"
    link(NEEDS | INDIRECT_NEEDS, unpacked(client_wheel, environment))
    return environment


def files_of(wheel: Path) -> set[str]:
    """Names of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def requirements(wheel: Path) -> set[str]:
    """Names of the distributions that a wheel requires without any extra."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = re.findall(r"^Requires-Dist: ([\w-]+)(.*)$", archive.read(metadata).decode(), flags=re.MULTILINE)
    return {name for name, rest in lines if "extra ==" not in rest}


async def ended(environment: Path, folder: Path, *arguments: str) -> tuple[int | None, str, str]:
    """Status, output and errors of the environment's Python, which sees neither this checkout nor our variables."""
    process = await asyncio.create_subprocess_exec(
        *(str(environment / "bin" / "python"), "-I", *arguments),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    return process.returncode, output.decode(), errors.decode()


def test_the_whole_wheel_requires_what_its_client_does(wheel: Path) -> None:
    assert requirements(wheel) == NEEDS
    playground = {str(file.relative_to(ROOT)) for file in PLAYGROUND.glob("*.*")}
    assert CLIENT_FILES | {"tei/v1/tei_pb2.py"} | playground <= files_of(wheel)


async def test_the_client_is_a_wheel_of_its_own(
    pair: Stack, client_wheel: Path, client_environment: Path, tmp_path: Path
) -> None:
    """It holds the package `selvage` and no other, and works with four packages: it imports no others."""
    assert requirements(client_wheel) == NEEDS
    assert files_of(client_wheel) >= CLIENT_FILES
    packages = {name.partition("/")[0] for name in files_of(client_wheel)}
    assert {name for name in packages if not name.endswith(".dist-info")} == {"selvage"}
    called = await ended(client_environment, tmp_path, "-c", CALLS, pair.frontends[0].address)
    assert called == (0, "(2, 384) 1 1 dimensions EmbedRequest\n", "")


async def test_the_client_alone_says_what_more_needs(client_environment: Path, tmp_path: Path) -> None:
    """An engine, and the bulk command."""
    needs = "Engine needs the extra engine: pip install '.[engine]' in a checkout (No module named 'embedded')\n"
    assert await ended(client_environment, tmp_path, "-c", ENGINE) == (0, needs, "")
    (tmp_path / "lines.txt").write_text("a quiet harbour\n")
    told = "the command needs pyarrow (the extra bulk): pip install pyarrow\n"
    command = ("-m", "selvage.bulk", "lines.txt", "--output", "vectors")
    assert await ended(client_environment, tmp_path, *command) == (1, "", told)
