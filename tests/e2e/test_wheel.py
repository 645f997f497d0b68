"""The wheel in an environment that has nothing but what it asks for: the client works there."""

import asyncio
import re
import zipfile
from pathlib import Path

from harness.environment import ROOT
from harness.stack import Stack
from support.environments import link, unpacked

NEEDS = {"grpcio", "protobuf", "googleapis-common-protos", "numpy"}
THEIRS = {"typing-extensions"}
"""What these need in turn."""
PLAYGROUND = ROOT / "frontend_service" / "api" / "http" / "playground"
PROGRAM = """
import sys
from selvage import Client, InvalidInput
with Client(sys.argv[1]) as client:
    rows = client.embed(["a quiet harbour", "a loud kitchen"])
    best = client.rerank("boats", ["a quiet harbour", "a loud kitchen"], top_n=1)
    streamed = list(client.embed_stream(["a quiet harbour"]))
    try:
        client.embed("a", dimensions=10_000)
    except InvalidInput as error:
        print(rows.shape, len(best), len(streamed), error.field)
"""


def requirements(metadata: str) -> set[str]:
    """Of the client alone: names of what no extra asks for."""
    lines = re.findall(r"^Requires-Dist: ([\w-]+)(.*)$", metadata, flags=re.MULTILINE)
    return {name for name, rest in lines if "extra ==" not in rest}


async def test_the_wheel_serves_a_client_with_four_packages(pair: Stack, wheel: Path, tmp_path: Path) -> None:
    """It asks for no others, and imports no others: nothing else is there."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        assert requirements(archive.read(metadata).decode()) == NEEDS
        assert {
            "selvage/py.typed",
            "selvage/client.py",
            "selvage/bulk/__main__.py",
            "selvage/v1/embedding_pb2.pyi",
            "tei/v1/tei_pb2.py",
        } <= {*names}
        assert {str(file.relative_to(ROOT)) for file in PLAYGROUND.glob("*.*")} <= {*names}
    link(NEEDS | THEIRS, unpacked(wheel, tmp_path / "empty"))
    python = tmp_path / "empty" / "bin" / "python"
    process = await asyncio.create_subprocess_exec(
        *(str(python), "-I", "-c", PROGRAM, pair.frontends[0].address),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    assert output.decode() == "(2, 384) 1 1 dimensions\n"
    (tmp_path / "lines.txt").write_text("a quiet harbour\na loud kitchen\n")
    flags = ("lines.txt", "--output", "vectors", "--format", "npy", "--target", pair.frontends[0].address)
    bulk = await asyncio.create_subprocess_exec(str(python), "-I", "-m", "selvage.bulk", *flags, cwd=tmp_path)
    assert await bulk.wait() == 0
    assert (tmp_path / "vectors" / "part-000000.dense.npy").stat().st_size == 128 + 2 * 384 * 4
