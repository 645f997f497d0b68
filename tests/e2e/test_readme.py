"""What the README tells a new user to type works."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import pytest

from harness.stack import Stack

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SHELL = re.findall(r"^buf curl (?:.*\\\n)*.*$", README, flags=re.MULTILINE)
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


async def run(pair: Stack, *command: str) -> str:
    """Its output, with the README's address replaced by the pair's; raises where it fails."""
    words = [word.replace("127.0.0.1:50051", pair.frontends[0].address) for word in command]
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": tools, "PYTHONPATH": str(ROOT / "client")}
    process = await asyncio.create_subprocess_exec(
        *words, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode()


@pytest.mark.parametrize(("line", "key"), list(zip(SHELL, ["results"], strict=True)))
async def test_a_line_of_the_readme(pair: Stack, line: str, key: str) -> None:
    assert key in json.loads(await run(pair, "sh", "-c", line))


async def test_the_python_of_the_readme(pair: Stack) -> None:
    """Two rows of 384 numbers, and a ranking that puts the harbour first."""
    (program,) = PYTHON
    output = await run(pair, sys.executable, "-c", program)
    array, *ranking = output.splitlines()
    assert array == "(2, 384) float32"
    (first, best), (second, worse) = (line.split() for line in ranking)
    assert (first, second) == ("1", "0")
    assert float(best) > float(worse)
