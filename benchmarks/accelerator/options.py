"""What every part is told."""

import argparse
import json
from pathlib import Path
from typing import Any


def parser(module: str, doc: str | None, out: Path | None = None) -> argparse.ArgumentParser:
    """With the options that all parts have; `doc` says what the part does, `out` where its result goes unless told."""
    made = argparse.ArgumentParser(prog=f"python -m {module}", description=doc)
    made.add_argument("--device", default="cuda:0", help="or cpu, for trying it out (default: %(default)s)")
    made.add_argument("--scale", choices=("small", "full"), default="full", help="of shapes (default: %(default)s)")
    made.add_argument("--seed", type=int, default=1, help="of all inputs (default: %(default)s)")
    made.add_argument("--seconds", type=float, default=4.0, help="of each closed loop (default: %(default)s)")
    where = "where the JSON goes" + (" (default: %(default)s)" if out else "")
    made.add_argument("--out", type=Path, default=out, required=out is None, help=where)
    return made


def write(path: Path, content: Any) -> None:
    """As JSON; whole at any time, since whoever writes it may be stopped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(content, indent=1) + "\n")
    draft.replace(path)


def told(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
