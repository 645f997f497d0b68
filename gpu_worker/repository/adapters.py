"""Adapters in a model's repository: where they lie, and the folder that their model is read from.

An adapter lies beside the weights of its base, or alone: then its description names the base, and the model is made of
both folders, as transformers and sentence-transformers make it. The two files are read here, without PEFT: they hold
JSON and plain tensors, and nothing in them is executed.
"""

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from gpu_worker.repository import adapter_config
from gpu_worker.repository.adapter_config import CONFIG, AdapterConfig
from gpu_worker.repository.files import check_inside, counting_suffixes, read_json, read_tensors
from shared.errors import ModelRefused

WEIGHTS = "adapter_model.safetensors"
PICKLES = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth")
MODEL = (
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin",
    "pytorch_model*.json",
    "*.py",
)
"""Patterns of the files at the root of a base that make the transformers model; others make its tokenizer."""
MODULES = "modules.json"
TOKENIZERS = ("tokenizer_config.json", "tokenizer.json")
"""Files that tell whether a folder has a tokenizer of its own."""
UNREAD = (MODULES, "config_sentence_transformers.json", "sentence_*_config.json", "adapter_*")
"""Patterns of files at the root of a base that do not count for an adapter alone: sentence-transformers reads them in
the adapter's own folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A LoRA adapter on disk: its description, and all its tensors by name, which are finite."""

    config: AdapterConfig
    tensors: dict[str, Tensor]

    @property
    def file(self) -> Path:
        """The file with the tensors."""
        return self.config.file.parent / WEIGHTS

    def digest(self) -> "hashlib._Hash":
        """A digest of both files."""
        sha256 = hashlib.sha256()
        for file in (self.config.file, self.file):
            content = file.read_bytes()
            sha256.update(b"%d " % len(content))
            sha256.update(content)
        return sha256


def folder_of(repository: Path) -> Path | None:
    """The folder of a repository that has an adapter: its root, or that of a module. None where there is none."""
    modules = read_json(repository / MODULES, missing=[])
    paths = [module.get("path") for module in modules if isinstance(module, dict)] if isinstance(modules, list) else []
    names = [path for path in paths if isinstance(path, str)]
    for name in names:
        check_inside(repository / MODULES, name)
    return next((folder for name in ("", *names) if ((folder := repository / name) / CONFIG).is_file()), None)


def read(folder: Path) -> Adapter:
    """Reads the adapter in a folder. Raises ModelRefused, which names the file, and the key or tensor."""
    config, file = adapter_config.read(folder), folder / WEIGHTS
    if not file.is_file():
        pickle = next((name for name in PICKLES if (folder / name).is_file()), None)
        why = f"{folder / pickle} is a pickle, which is not read for adapters" if pickle else f"{file} is missing"
        raise ModelRefused(f"{why}: save the adapter as safetensors")
    tensors = read_tensors(file)
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.isfinite().all():
            raise ModelRefused(f"{file}: {name} holds numbers that are not finite")
    return Adapter(config=config, tensors=tensors)


@contextmanager
def model_folder(repository: Path, adapter_folder: Path, base: Path | None) -> Iterator[Path]:
    """A folder to read the model from, as long as the context lasts: the repository's files without those of its
    adapter and, where the adapter lies alone, the model and the tokenizer of its `base`.

    Refusals inside of the context name the repository's own folder.
    """
    with tempfile.TemporaryDirectory(prefix="selvage-") as name:
        root = Path(name)
        for file in repository.rglob("*"):
            place = file.relative_to(repository)
            of_adapter = file.parent == adapter_folder and file.name.startswith("adapter_")
            if file.is_file() and not (of_adapter or any(part.startswith(".") for part in place.parts)):
                _link(file, root / place)
        if base is not None:
            _add_base(base, root / adapter_folder.relative_to(repository))
        try:
            yield root
        except ModelRefused as refused:
            raise ModelRefused(str(refused).replace(name, str(repository))) from refused


def _add_base(base: Path, folder: Path) -> None:
    """Adds the files of a base to the folder of its adapter, whose own files stay."""
    own_tokenizer = any((folder / name).exists() for name in TOKENIZERS)
    for file in base.iterdir():
        model = any(file.match(pattern) for pattern in MODEL)
        counts = file.suffix in counting_suffixes(True) and not any(file.match(pattern) for pattern in UNREAD)
        if file.is_file() and counts and (model or not own_tokenizer) and not (folder / file.name).exists():
            _link(file, folder / file.name)


def _link(file: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(file.resolve())
