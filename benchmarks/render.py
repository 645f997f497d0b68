"""Renders the README's figures from the result files, or checks that they are those of the files."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- rendered from benchmarks/results: begin -->", "<!-- rendered: end -->"


def table(result: dict[str, Any]) -> str:
    """The engine against its peers, in Markdown."""
    workload, machine, sides = result["workload"], result["machine"], result["sides"]
    peers = {"sentence-transformers": "sentence-transformers default", "onnxruntime": "onnxruntime"}
    seconds = {
        peer: next(side["median_seconds"] for name, side in sides.items() if name.startswith(start))
        for peer, start in peers.items()
    }
    lines = [
        f"The engine on {workload['texts']} texts of lognormal length ({workload['tokens']:,} tokens, longest "
        f"{workload['longest']}), MiniLM-L6, {result['threads']} threads of {machine['processor']}, median of "
        f"{result['rounds']} interleaved rounds, token ids prepared on all sides (`make bench`, "
        f"torch {machine['versions']['torch']}, sentence-transformers {machine['versions']['sentence-transformers']}, "
        f"onnxruntime {machine['versions']['onnxruntime']}):",
        "",
        "| | tokens/s | x sentence-transformers default | x onnxruntime float32 |",
        "|---|---:|---:|---:|",
    ]
    for name, side in sides.items():
        ratios = " | ".join(f"{seconds[peer] / side['median_seconds']:.2f}" for peer in peers)
        lines.append(f"| {name} | {side['tokens_per_second']:,} | {ratios} |")
    return "\n".join(lines)


def rendered(readme: str) -> str:
    """The README with its figures."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    result = json.loads((ROOT / "benchmarks" / "results" / "engine-cpu.json").read_text())
    return f"{before}{BEGIN}\n{table(result)}\n{END}{after}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.render", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args()
    path = ROOT / "README.md"
    current = path.read_text()
    if arguments.check:
        sys.exit(0 if rendered(current) == current else "README.md is not rendered from benchmarks/results")
    path.write_text(rendered(current))
