"""The frontend with nothing but what it asks for: without a model library it installs, starts, serves.

In an environment that links what the wheel asks for; `make compose-test` builds its image.
"""

import asyncio
import os
import subprocess
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


class Image:
    """A folder that stands for the image: `venv` for its Python, `elsewhere` for /."""

    def __init__(self, folder: Path) -> None:
        self.venv, self.elsewhere = folder / "venv", folder / "elsewhere"
        self.elsewhere.mkdir()

    @property
    def python(self) -> str:
        return str(self.venv / "bin" / "python")

    def must(self, *arguments: str) -> str:
        """The output of its Python, which has to succeed and sees nothing of this process's paths."""
        environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        command = [self.python, *arguments]
        answer = subprocess.run(
            command, cwd=self.elsewhere, env=environment, capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, f"{answer.stdout[-6000:]}\n{answer.stderr[-6000:]}"
        return answer.stdout


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Image:
    """What the wheel asks for with its extra `frontend`."""
    image = Image(tmp_path_factory.mktemp("image"))
    packages = unpacked(wheel, image.venv)
    link(asked_for(packages, "frontend"), packages)
    return image


def test_the_installed_packages_suffice(image: Image) -> None:
    """Every module of the frontend loads from the venv, away from the repository; no model library and no code of the
    worker is there."""
    libraries = ["torch", "transformers", "safetensors", "sentence_transformers"]
    code = (
        f"import importlib.util as u, sys; print([n for n in {libraries} if u.find_spec(n)])\n"
        "sys.modules['gpu_worker'] = None\n"
        "import frontend_service.__main__ as main, shared.server.probe as probe\n"
        "print(main.__file__, probe.__file__, sep='\\n')"
    )
    first, *files = image.must("-c", code).splitlines()
    assert first == "[]"
    assert all(Path(file).is_relative_to(image.venv) for file in files)


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
        await asyncio.to_thread(image.must, *asked)
