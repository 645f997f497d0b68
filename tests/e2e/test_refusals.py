"""A worker that cannot serve a model says so in one line and ends with 2; `--check` says what it would serve."""

import asyncio
import json
import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.environment import ROOT, python_path
from harness.random_models import miniature
from support.forked import Nursery
from support.random_models import random_model
from support.references import eventually
from support.tiny import write_encoder, write_json

MORE = pytest.mark.slow


async def started(*arguments: str, nursery: Nursery) -> Any:
    """A worker whose output and errors are pipes."""
    return await nursery.start(
        sys.executable,
        *("-m", "gpu_worker", "--listen", "127.0.0.1:0", *arguments),
        cwd=ROOT,
        env={"PYTHONPATH": python_path(), "PATH": "", "HOME": "/nonexistent"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def worker(*arguments: str, nursery: Nursery) -> tuple[int | None, str, str]:
    """Exit code, output and errors of a worker that is expected to end."""
    process = await started(*arguments, nursery=nursery)
    output, errors = await process.communicate()
    return process.returncode, output.decode(), errors.decode()


class Trap:
    """What a pickle with code does when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("arguments", [(), ("--check",)], ids=["served", "checked"])
async def test_a_broken_repository(tmp_path: Path, nursery: Nursery, arguments: tuple[str, ...]) -> None:
    """One line that names the file, exit code 2, nothing executed."""
    write_encoder(tmp_path, "tiny-bert")
    (tmp_path / "model.safetensors").unlink()
    weights = {"embeddings.word_embeddings.weight": Trap(tmp_path / "ran")}
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(weights))
    code, output, errors = await worker("--model", str(tmp_path), *arguments, nursery=nursery)
    lines = [line for line in errors.splitlines() if line.startswith("--model")]
    assert code == 2, errors
    assert len(lines) == 1
    assert "pytorch_model.bin: the weights cannot be loaded" in lines[0]
    assert "Traceback" not in errors + output
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--max-tokens", "641"), "the model has 640 positions"),
        (("--device", "cuda:99"), "device 'cuda:99' cannot be used"),
    ],
)
async def test_a_setting_that_cannot_be_is_told(flags: tuple[str, ...], told: str, nursery: Nursery) -> None:
    code, _, errors = await worker("--model", random_model("tiny-bert"), *flags, nursery=nursery)
    assert code == 2, errors
    assert told in errors.splitlines()[-1]


CODE = """
from pathlib import Path
from transformers import BertConfig, BertModel

Path(__file__).with_name("ran").touch()
Path({trace!r}).touch()

class OwnConfig(BertConfig):
    model_type = "own"

class OwnModel(BertModel):
    config_class = OwnConfig
"""


async def test_code_of_a_repository_runs_only_where_it_is_trusted(tmp_path: Path, nursery: Nursery) -> None:
    """Without the flag it is refused and not run; with it, it has to pass the same gate.

    Neither imports nor a first load, which the process has done that these are forked from, say a word beside the card.
    """
    repository, trace = tmp_path / "repository", tmp_path / "ran"
    write_encoder(repository, "tiny-bert")
    config = json.loads((repository / "config.json").read_text())
    own = {"AutoConfig": "modeling_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"}
    write_json(repository, config=config | {"model_type": "own", "architectures": ["OwnModel"], "auto_map": own})
    (repository / "modeling_own.py").write_text(CODE.format(trace=str(trace)))
    code, _, errors = await worker("--model", str(repository), "--check", nursery=nursery)
    assert code == 2, errors
    assert "only --trust-remote-code runs" in errors
    assert not trace.exists()
    flags = ("--model", str(repository), "--check", "--trust-remote-code")
    code, output, errors = await worker(*flags, nursery=nursery)
    assert (code, errors, nursery.said("gpu_worker")) == (0, "", "")
    assert trace.exists()
    assert "own" in output.split("family")[1].splitlines()[0]


async def test_check_prints_the_card_and_the_memory(nursery: Nursery) -> None:
    code, output, errors = await worker("--model", random_model("tiny-bge-m3"), "--check", nursery=nursery)
    assert (code, errors) == (0, "")
    card = {line.split()[0]: line.split(maxsplit=1)[-1] for line in output.splitlines()}
    assert card["outputs"] == "DENSE, SPARSE, MULTI_VECTOR"
    assert card["methods"] == "DENSE, SPARSE, LATE_INTERACTION, HYBRID"
    assert card["sparse_head"] == "lexical"
    assert int(card["weight_bytes"]) > 800_000
    assert card["process,"].endswith("MiB")
    assert "it can be served" in output


@pytest.mark.parametrize("kind", ["reformer", pytest.param("m2m_100", marks=MORE), pytest.param("bros", marks=MORE)])
async def test_a_refusal_is_one_line_that_names_the_reason(kind: str, tmp_path: Path, nursery: Nursery) -> None:
    """Neither reports nor advice of libraries come before it."""
    miniature.write(tmp_path, kind)
    code, _, errors = await worker("--model", str(tmp_path), "--check", nursery=nursery)
    assert code == 2
    (line,) = errors.splitlines()
    assert line.startswith(f"--model = '{tmp_path}': ")
    assert "depends on the texts before it" in line or "by itself" in line


@pytest.mark.parametrize(
    "kind",
    [
        "t5",
        "jamba",
        *(pytest.param(kind, marks=MORE) for kind in ("gpt_oss", "nemotron", "gemma4_text", "deepseek_v3")),
    ],
)
async def test_what_was_refused_by_mistake_is_served_without_a_word(
    kind: str, tmp_path: Path, nursery: Nursery
) -> None:
    """The card is all that `--check` prints; not packed, it says why and what it costs."""
    miniature.write(tmp_path, kind)
    code, output, errors = await worker("--model", str(tmp_path), "--check", nursery=nursery)
    assert (code, errors) == (0, "")
    packed = kind in ("t5", "deepseek_v3", "gemma4_text")
    assert ("attention                  equal length" in output) is not packed
    assert ("steps of many lengths take longer" in output) is not packed


@pytest.mark.parametrize("flags", [(), ("--check",)], ids=["serving", "checking"])
async def test_ctrl_c_while_a_worker_loads(flags: tuple[str, ...], tmp_path: Path, nursery: Nursery) -> None:
    """It ends at once, without a traceback, though it hangs in the first file of the model, which is a pipe."""
    pipe, writing = tmp_path / "config.json", list[int]()
    os.mkfifo(pipe)
    process = await started("--model", str(tmp_path), *flags, nursery=nursery)

    def is_read() -> bool:
        try:
            writing.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # nobody reads it yet
            return False
        return True

    await eventually(is_read)
    os.kill(process.pid, signal.SIGINT)
    output, errors = await process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in output.decode() + errors.decode()
    assert [line for line in errors.decode().splitlines() if not line.startswith("{")] == []  # logs are JSON
    os.close(writing[0])
