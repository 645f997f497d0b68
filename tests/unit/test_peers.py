"""Peers that benchmarks compare with: what can be wrong about them without their being installed."""

import ast
import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import minilm
from benchmarks.peers import infinity

ROOT = Path(__file__).parents[2]
LISTS = sorted((ROOT / "benchmarks" / "peers").glob("*.txt"))
PINNED = re.compile(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==[0-9][A-Za-z0-9.+]*")


def requirements(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def server(folder: Path = Path("nowhere")) -> infinity.Served:
    return infinity.Served(address="http://127.0.0.1:7997", folder=folder, pid=1, longest=256)


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_version_is_pinned_exactly(path: Path) -> None:
    """What was measured can be installed again."""
    assert [line for line in requirements(path) if not PINNED.fullmatch(line)] == []


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_nothing_is_pinned_twice(path: Path) -> None:
    """Whatever way its name is written."""
    names = [re.split(r"[\[=]", line)[0].lower().replace("_", "-") for line in requirements(path)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_make_peers_sets_up_every_list(path: Path) -> None:
    """One command for all."""
    (rule,) = (line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("peers:"))
    assert f"$(PEERS)/{path.stem}/ready" in rule


def test_pylate_is_pinned_where_it_is_installed() -> None:
    """Apart from its list, since it comes without its dependencies; the committed result is of this version."""
    pinned = re.search(r"--no-deps (\S+)", (ROOT / "Makefile").read_text())
    assert pinned is not None
    assert PINNED.fullmatch(pinned[1])
    result = json.loads((ROOT / "benchmarks" / "results" / "maxsim-cpu.json").read_text())
    assert pinned[1] == f"pylate=={result['peers']['pylate']}"


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").rglob("*.py")), ids=lambda path: path.name)
def test_scripts_parse(path: Path) -> None:
    """Also those that run in another Python and that nothing here imports."""
    ast.parse(path.read_text())


def test_infinity_is_asked_for_all_texts_at_once() -> None:
    """As OpenAI's clients ask."""
    asked = json.loads(server().body(["a harbour", "boats"]))
    assert asked == {"model": "minilm", "input": ["a harbour", "boats"], "encoding_format": "base64"}
    assert server().url == "http://127.0.0.1:7997/embeddings"


def test_vectors_are_read_in_the_order_of_the_texts() -> None:
    """Whatever order they were answered in."""
    rows = np.arange(6, dtype="<f4").reshape(3, 2)
    encoded = [{"index": place, "embedding": base64.b64encode(rows[place]).decode()} for place in (2, 0, 1)]
    np.testing.assert_array_equal(rows, server().rows(json.dumps({"data": encoded}).encode()))


def test_tokens_are_those_of_the_model() -> None:
    """With [CLS] and [SEP], without padding, cut where the model cuts."""
    texts = ["a harbour", "harbour", "boats " * 300]
    assert server(minilm.folder()).tokens(texts) == [4, 3, 256]


def test_a_peer_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so is what installs it."""
    monkeypatch.setattr(infinity, "PROGRAM", tmp_path / "infinity_emb")
    with pytest.raises(SystemExit, match="make peers"), infinity.served(minilm.folder()):
        pass


def test_a_peer_that_ends_while_it_starts_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, not after the wait."""
    program = tmp_path / "infinity_emb"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(infinity, "PROGRAM", program)
    with pytest.raises(SystemExit, match="ended with 3"), infinity.served(minilm.folder()):
        pass
