"""`--check` in this process."""

from pathlib import Path

from gpu_worker.check import check
from gpu_worker.settings import WorkerSettings


def checked(folder: Path | str, *flags: str) -> int:
    """The exit status of `--check` for a model on the processor, in float32."""
    return check(WorkerSettings.read(["--model", str(folder), "--device", "cpu", "--dtype", "float32", *flags]))
