"""Renders the README's figures from the result files, or checks that they are those of the files."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- rendered from benchmarks/results: begin -->", "<!-- rendered: end -->"


RESULTS = ROOT / "benchmarks" / "results"


def engine(result: dict[str, Any]) -> str:
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


def maxsim(result: dict[str, Any]) -> str:
    """MaxSim against its peers, in Markdown."""
    workload, machine, cases = result["workload"], result["machine"], result["cases"]
    versions = result["peers"]
    counts = [f"{case['documents']:,}" for case in cases]
    lines = [
        f"MaxSim of one query ({workload['query_rows']} x {workload['dimensions']}, float32) with "
        f"{' and '.join(counts)} documents of lognormal length (mean about {workload['mean_length']}), "
        f"{result['threads']} threads of {machine['processor']}, median of {result['rounds']} interleaved rounds "
        f"(PyLate {versions['pylate']}, maxsim-cpu {versions['maxsim-cpu']}, "
        f"sentence-transformers {machine['versions']['sentence-transformers']}). Rows lie end to end, as a step has "
        "them; from a list they are joined first. Padded batches are padded beforehand:",
        "",
        f"| | {' | '.join(f'{count} documents: documents/s | selvage is faster by' for count in counts)} |",
        f"|---|{'---:|' * 2 * len(counts)}",
    ]
    for name in cases[0]["sides"]:
        cells = []
        for case in cases:
            own = case["sides"]["selvage"]["median_seconds"]
            side = case["sides"][name]
            cells += [f"{side['documents_per_second']:,}", f"{side['median_seconds'] / own:.2f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rerank(result: dict[str, Any]) -> str:
    """What a big rerank spends, in words."""
    shares = [
        f"{case['scoring_share']:.1%} for {case['documents']:,} documents of {case['tokens']} tokens ({case['model']})"
        for case in result["scoring"]
    ]
    memory, processor = result["memory"][0], result["machine"]["processor"]
    above = {name: figures["mebibytes_above_idle"] for name, figures in memory.items() if isinstance(figures, dict)}
    took = " and ".join(f"{count:.0f} MiB ({name})" for name, count in above.items())
    return (
        f"Of a big rerank's steps ({result['threads']} threads of {processor}) scoring takes {', '.join(shares)}. "
        f"Reranking {memory['documents']:,} documents of 16 tokens through both services (MiniLM-L6) takes {took} of "
        "the worker's memory above idle."
    )


def rendered(readme: str) -> str:
    """The README with its figures."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    parts = {"engine-cpu": engine, "maxsim-cpu": maxsim, "rerank-cpu": rerank}
    shown = "\n\n".join(render(json.loads((RESULTS / f"{name}.json").read_text())) for name, render in parts.items())
    return f"{before}{BEGIN}\n{shown}\n{END}{after}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.render", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args()
    path = ROOT / "README.md"
    current = path.read_text()
    if arguments.check:
        sys.exit(0 if rendered(current) == current else "README.md is not rendered from benchmarks/results")
    path.write_text(rendered(current))
