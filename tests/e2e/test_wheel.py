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


async def outputs_of(environment: Path, *arguments: str, folder: Path) -> str:
    """What the environment's Python prints; it sees neither this checkout nor the variables of this process."""
    process = await asyncio.create_subprocess_exec(
        *(str(environment / "bin" / "python"), "-I", *arguments),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode()


async def check_that_the_client_works(environment: Path, address: str, folder: Path) -> None:
    """The client calls a served pair."""
    output = await outputs_of(environment, "-c", CALLS, address, folder=folder)
    assert output == "(2, 384) 1 1 dimensions EmbedRequest\n"


async def test_the_wheel_serves_a_client_with_four_packages(pair: Stack, wheel: Path, tmp_path: Path) -> None:
    """It requires no others, and imports no others: nothing else is there."""
    assert requirements(wheel) == NEEDS
    playground = {str(file.relative_to(ROOT)) for file in PLAYGROUND.glob("*.*")}
    assert CLIENT_FILES | {"tei/v1/tei_pb2.py"} | playground <= files_of(wheel)
    link(NEEDS | INDIRECT_NEEDS, unpacked(wheel, tmp_path / "empty"))
    await check_that_the_client_works(tmp_path / "empty", pair.frontends[0].address, tmp_path)


async def test_the_client_is_a_wheel_of_its_own(
    pair: Stack, client_wheel: Path, client_environment: Path, tmp_path: Path
) -> None:
    """It holds the package `selvage` and no other, and works with four packages."""
    assert requirements(client_wheel) == NEEDS
    assert files_of(client_wheel) >= CLIENT_FILES
    packages = {name.partition("/")[0] for name in files_of(client_wheel)}
    assert {name for name in packages if not name.endswith(".dist-info")} == {"selvage"}
    await check_that_the_client_works(client_environment, pair.frontends[0].address, tmp_path)


async def test_the_client_alone_says_what_an_engine_needs(client_environment: Path, tmp_path: Path) -> None:
    output = await outputs_of(client_environment, "-c", ENGINE, folder=tmp_path)
    needs = "Engine needs the extra engine: pip install '.[engine]' in a checkout (No module named 'embedded')\n"
    assert output == needs


async def test_the_client_alone_says_what_the_bulk_command_needs(client_environment: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a quiet harbour\n")
    process = await asyncio.create_subprocess_exec(
        *(str(client_environment / "bin" / "python"), "-I", "-m", "selvage.bulk", "lines.txt", "--output", "vectors"),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    told = "the command needs pyarrow (the extra bulk): pip install pyarrow\n"
    assert (process.returncode, output.decode(), errors.decode()) == (1, "", told)
