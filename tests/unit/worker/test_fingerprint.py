"""The fingerprint changes with every file and every installed package that can change a row, and with nothing else."""

import sys
from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest
import transformers
from torch import nn

from gpu_worker.model.loading import load
from gpu_worker.model.source import STAND_INS, code_of, installed_packages
from gpu_worker.repository import fitting
from gpu_worker.repository.files import digest_of_files
from support.tiny import CPU, write_json

IRRELEVANT = {
    "README.md": "text",
    "LICENSE.txt": "text",
    "requirements.txt": "torch",
    ".gitattributes": "text",
    ".git/config.json": "{}",
    ".cache/huggingface/download/model.safetensors.json": "{}",
    "onnx/model.json": "{}",
    "onnx/vocab.txt": "w",
    "openvino/openvino_model.bin": "weights",
    "pytorch_model.bin": "the same weights as model.safetensors, which is what is read",
    "modeling_own.py": "code that is not run",
    "images/chart.png": "picture",
}
RELEVANT = {
    "config.json": '{"a": 1}',
    "tokenizer.json": "{}",
    "tokenizer_config.json": '{"a": 1}',
    "special_tokens_map.json": '{"a": 1}',
    "added_tokens.json": "{}",
    "vocab.txt": "w",
    "vocab.json": "{}",
    "merges.txt": "a b",
    "spiece.model": "sentencepiece",
    "bpe.codes": "a b",
    "source.spm": "sentencepiece",
    "qwen.tiktoken": "YQ== 0",
    "chat_template.jinja": "{{ query }}",
    "additional_chat_templates/other.jinja": "{{ query }}",
    "modules.json": "[]",
    "config_sentence_transformers.json": "{}",
    "sentence_bert_config.json": "{}",
    "1_Pooling/config.json": "{}",
    "2_Dense/pytorch_model.bin": "weights",
    "2_Dense/onnx/model.safetensors": "a folder of that name inside a module is no export",
    "model-00002-of-00002.safetensors": "weights",
    "model.safetensors.index.json": "{}",
    "adapter_config.json": "{}",
    "artifact.metadata": "{}",
    "colbert_linear.pt": "weights",
}


def fingerprint(folder: Path, code: bool = False) -> str:
    return digest_of_files(folder, trust_remote_code=code).hexdigest()


def put(folder: Path, name: str, content: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content)


@pytest.mark.parametrize("name", IRRELEVANT)
def test_what_no_row_depends_on_does_not_count(folder: Path, name: str) -> None:
    """So that a clone and a snapshot of one commit are one model."""
    before = fingerprint(folder)
    put(folder, name, IRRELEVANT[name])
    assert fingerprint(folder) == before


@pytest.mark.parametrize("name", RELEVANT)
def test_what_a_row_may_depend_on_counts(folder: Path, name: str) -> None:
    prints = {fingerprint(folder)}
    put(folder, name, RELEVANT[name])
    prints.add(fingerprint(folder))
    put(folder, name, RELEVANT[name] + " ")
    prints.add(fingerprint(folder))
    assert len(prints) == 3


def test_code_counts_where_it_is_run(folder: Path) -> None:
    before = fingerprint(folder, code=True)
    put(folder, "modeling_own.py", "x = 1")
    assert fingerprint(folder, code=True) != before


def test_borders_between_files_count(tmp_path: Path) -> None:
    """The same letters in other files are another repository."""
    for name, files in (("one", {"a": '"b.json""c"', "d": "1"}), ("other", {"a": '"b.json"', "d": '"c"1'})):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name, **files)
    assert fingerprint(tmp_path / "one") != fingerprint(tmp_path / "other")


def importable(folder: Path, name: str) -> None:
    """A package with a version, as pip leaves it."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").touch()
    distribution = STAND_INS.get(name, name)
    about = folder / f"{distribution.replace('-', '_')}-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
    invalidate_caches()


@pytest.mark.parametrize("name", STAND_INS)
def test_a_package_that_computes_in_transformers_place_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each with its version, as transformers counts with its own."""
    monkeypatch.syspath_prepend(tmp_path)
    assert name not in sys.modules
    before = installed_packages()
    assert f"transformers {transformers.__version__}" in before
    importable(tmp_path, "some_package")
    assert installed_packages() == before
    importable(tmp_path, name)
    assert f"{name} 1.2" in installed_packages()


def test_packages_are_part_of_a_model_s_fingerprint(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load(str(encoder), CPU).fingerprint
    assert load(str(encoder), CPU).fingerprint == before
    monkeypatch.syspath_prepend(tmp_path)
    importable(tmp_path, "mambapy")
    assert load(str(encoder), CPU).fingerprint != before


def test_the_words_of_a_notice_do_not_count(encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that says them otherwise serves the same rows, beside one that does not."""
    before = load(str(encoder), CPU).fingerprint
    monkeypatch.setattr(fitting, "check_vocabulary", lambda *_: "said in other words")
    model = load(str(encoder), CPU)
    assert model.notice == "said in other words"
    assert model.fingerprint == before


def test_code_that_another_repository_brings_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A config's auto_map may name one; transformers keeps it under this package."""
    for name in [each for each in sys.modules if each.startswith("transformers_modules")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    put(tmp_path, "transformers_modules/theirs.py", "from torch import nn\nclass Theirs(nn.Linear):\n    factor = 2\n")
    theirs = import_module("transformers_modules.theirs")
    try:
        (source,) = code_of(nn.Sequential(theirs.Theirs(2, 2)))
    finally:
        for name in ("transformers_modules.theirs", "transformers_modules"):
            del sys.modules[name]
    assert "factor = 2" in source
    assert code_of(nn.Sequential(nn.Linear(2, 2))) == []
