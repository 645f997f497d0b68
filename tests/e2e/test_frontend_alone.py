"""The frontend with nothing but what it asks for: without a model library it installs, starts, serves.

In an environment that links what the wheel asks for, at every run; by `make test-slow` also in one that is made by the
very steps of its image.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness.stack import stack
from selvage.v1 import embedding_pb2, ranking_pb2
from selvage.v1.embedding_pb2_grpc import EmbeddingServiceStub
from selvage.v1.ranking_pb2_grpc import RankingServiceStub
from support.environments import asked_for, link, unpacked
from support.random_models import random_model

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "frontend.Dockerfile"
TEST_TOOLS = ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "trustme")

pytestmark = [pytest.mark.timeout(900)]  # the first slow test waits for an installation


class Image:
    """A folder that stands for the image: `build` for its WORKDIR, `venv` for its Python, `elsewhere` for /."""

    def __init__(self, folder: Path) -> None:
        self.build, self.venv, self.elsewhere = (folder / name for name in ("build", "venv", "elsewhere"))
        self.elsewhere.mkdir()

    @property
    def python(self) -> str:
        return str(self.venv / "bin" / "python")

    def run(self, *command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """With `pip` and `python` meaning the image's, and nothing of this process's paths."""
        environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        environment["PIP_NO_COMPILE"] = "1"  # a few seconds, for modules of which few are imported
        environment["PATH"] = f"{self.venv / 'bin'}{os.pathsep}{environment['PATH']}"
        return subprocess.run(
            command, cwd=cwd or self.elsewhere, env=environment, capture_output=True, text=True, check=False
        )

    def must(self, *command: str, cwd: Path | None = None) -> str:
        """The output of a command that has to succeed."""
        answer = self.run(*command, cwd=cwd)
        assert answer.returncode == 0, f"{' '.join(command)}\n{answer.stdout[-6000:]}\n{answer.stderr[-6000:]}"
        return answer.stdout


def context(folder: Path) -> None:
    """What `COPY . .` finds: .dockerignore lists what is let in."""
    folder.mkdir()
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        source = ROOT / line.removeprefix("!")
        if not line.startswith("!") or not source.exists():
            continue
        if source.is_dir():
            target = folder / line.removeprefix("!")
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, folder)


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Image:
    """What the wheel asks for with its extra `frontend`."""
    image = Image(tmp_path_factory.mktemp("linked"))
    packages = unpacked(wheel, image.venv)
    link(asked_for(packages, "frontend"), packages)
    return image


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Built by the RUN lines as they stand in the Dockerfile."""
    image = Image(tmp_path_factory.mktemp("frontend"))
    subprocess.run([sys.executable, "-m", "venv", str(image.venv)], check=True)
    context(image.build)
    lines = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text()).splitlines()
    for line in lines:
        if line.startswith("COPY ") and line != "COPY . .":
            shutil.copy(ROOT / line.split()[1], image.build)
    steps = [line.removeprefix("RUN ") for line in lines if line.startswith("RUN ")]
    assert steps, "the Dockerfile installs nothing"
    for step in steps:
        image.must("sh", "-c", step, cwd=image.build)
    return image


@pytest.fixture(params=["linked", pytest.param("installed", marks=pytest.mark.slow)])
def image(request: pytest.FixtureRequest) -> Image:
    """Either of them."""
    made: Image = request.getfixturevalue(request.param)
    return made


def test_no_model_library_is_there(image: Image) -> None:
    libraries = ["torch", "transformers", "safetensors", "sentence_transformers"]
    code = f"import importlib.util as u; print([n for n in {libraries} if u.find_spec(n)])"
    assert image.must(image.python, "-c", code) == "[]\n"


def test_the_installed_packages_suffice(image: Image) -> None:
    """Every module of the frontend loads from the venv, away from the repository and with the worker's code blocked."""
    code = (
        "import sys; sys.modules['gpu_worker'] = None\n"
        "import frontend_service.__main__ as main, shared.server.probe as probe\n"
        "print(main.__file__, probe.__file__)"
    )
    for file in image.must(image.python, "-c", code).split():
        assert Path(file).is_relative_to(image.venv)


def test_the_settings_are_told(image: Image) -> None:
    assert "--worker" in image.must(image.python, "-m", "frontend_service", "--help")


async def test_it_serves(image: Image) -> None:
    """An Embed and a Rerank succeed, and the health check of compose.yaml passes."""
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    async with stack(random_model("tiny-bert"), python=image.python) as running:
        embedded = await EmbeddingServiceStub(running.channel).Embed(embedding_pb2.EmbedRequest(texts=["w1 w2", "w3"]))
        assert embedded.dense.count == 2
        request = ranking_pb2.RerankRequest(query="w1", documents=["w2 w3", "w1"])
        ranked = await RankingServiceStub(running.channel).Rerank(request)
        assert [result.index for result in ranked.results] == [1, 0]
        _, _, *arguments = compose["services"]["frontend"]["healthcheck"]["test"]
        asked = [running.frontends[0].address if each.endswith(":50051") else each for each in arguments]
        command = (image.python, *asked)
        checked = await asyncio.to_thread(image.run, *command)
        assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.slow
def test_its_unit_tests_pass(installed: Image) -> None:
    """Those of the frontend need nothing but the frontend, and the tools of testing; few examples show it."""
    assert "No module named 'torch'" in installed.run(installed.python, "-c", "import torch").stderr
    installed.must("pip", "install", "--constraint", "constraints.txt", *TEST_TOOLS, cwd=installed.build)
    assert "No module named 'torch'" in installed.run(installed.python, "-c", "import torch").stderr
    options = ("-q", "-p", "no:cacheprovider", "--hypothesis-profile", "few")
    installed.must(installed.python, "-m", "pytest", *options, "tests/unit/frontend", cwd=ROOT)
