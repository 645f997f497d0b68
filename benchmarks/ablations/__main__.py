"""Runs the ablations, prints what each idea is worth, and writes it all as JSON."""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.ablations.ablation import Ablation
from benchmarks.ablations.conditions import Conditions
from benchmarks.machine import describe
from gpu_worker.device.allocator import keep_freed_memory

RESULTS = Path(__file__).parents[1] / "results"
LETTERS = "abcdef"
FULL = {"a": 15, "b": 15, "c": 15, "d": 11, "e": 7, "f": 5}
QUICK = {"a": 3, "b": 3, "c": 3, "d": 3, "e": 3, "f": 2}
SAYS = {"gains": "gains", "loses": "LOSES", "nothing": "brings nothing here", "unclear": "no clear difference"}


def ablation(letter: str) -> Ablation:
    """Imported when it runs: (e) needs what a machine with PyTorch alone does not have."""
    from importlib import import_module

    names = ("projection", "splitting", "masks", "late_interaction", "tokenizing", "padding")
    found = import_module(f"benchmarks.ablations.{names[LETTERS.index(letter)]}").ABLATION
    assert isinstance(found, Ablation)
    return found


def lines(outcome: dict[str, Any]) -> Sequence[str]:
    """A case for people: ours against each other variant, figure by figure."""
    told = [f"  {outcome['case']}: {outcome['ours']} {_shown(outcome, outcome['ours'])}"]
    for name, found in outcome["against"].items():
        says = [
            f"{'' if figure == 'time' else figure + ' '}{SAYS[each['verdict']]}, ratio {each['ratio']:.2f}"
            f" ({each['lower_quartile']:.2f} to {each['upper_quartile']:.2f})"
            for figure, each in found.items()
        ]
        told.append(f"    against {name} {_shown(outcome, name)}: {'; '.join(says)}")
    return told


def _shown(outcome: dict[str, Any], name: str) -> str:
    found = outcome["variants"][name]["figures"]
    counted = [f", {what} {each['value']:,}" for what, each in found.items() if each["unit"] == "count"]
    rates = [f", {what} {each['median']:,.0f}" for what, each in found.items() if each["unit"] == "count/second"]
    return f"[{found['time']['median'] * 1e3:.3f} ms{''.join(counted + rates)}]"


def run(letters: str, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """What each ablation found, by letter; prints while it goes on."""
    found = {}
    for letter in letters:
        chosen = ablation(letter)
        if device.type not in chosen.devices:
            print(f"({letter}) runs on {' and '.join(chosen.devices)} only\n")
            continue
        conditions = Conditions(
            device=device,
            model=options.model,
            seed=options.seed,
            rounds=options.rounds or (QUICK if options.quick else FULL)[letter],
            turn=0.004 if options.quick else 0.02,
            quick=options.quick,
        )
        start = time.perf_counter()
        print(f"({letter}) {chosen.idea}", flush=True)
        cases = []
        for outcome in chosen.measure(conditions):
            cases.append(outcome)
            print("\n".join(lines(outcome)), flush=True)
        found[letter] = chosen.as_json(cases)
        print(f"  took {time.perf_counter() - start:.1f} s\n", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablations", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=LETTERS, default=[*LETTERS], help="default: all of them")
    parser.add_argument("--quick", action="store_true", help="few rounds of small inputs: shows that all of them run")
    parser.add_argument("--device", default="cpu", help="cpu or cuda; (e) runs on a cpu only (default: %(default)s)")
    parser.add_argument(
        "--model", default="minilm", help="of (a), (e), (f), such as random:bge-base-en (default: minilm)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of all inputs (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=0, help="interleaved rounds (default: as suits each ablation)")
    parser.add_argument("--threads", type=int, default=2, help="of the processor (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/ablations-DEVICE.json")
    options = parser.parse_args()
    device = torch.device(options.device)
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    result = {
        "benchmark": f"ablations-{device.type}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "model": options.model,
        "dtype": "named in each case",
        "seed": options.seed,
        "threads": options.threads,
        "quick": options.quick,
        "machine": describe(),
        "ablations": run("".join(sorted(options.only)), device, options),
    }
    out = options.out or RESULTS / f"ablations-{device.type}.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {out}")


if __name__ == "__main__":
    main()
