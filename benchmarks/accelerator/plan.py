"""Which parts a run has, in which order, and how long each may take. What matters most comes first."""

from argparse import Namespace
from itertools import groupby
from pathlib import Path

from benchmarks.accelerator.part import Part
from benchmarks.accelerator.workloads import all_of

SERVICES = "short through the services"
SPLITTING = "ablation-b-cuda.json"
SECONDS = {"tests": 200, "limits": 60, "engine": 120, "maxsim": 60, "services": 100, "ablations": 150}
"""At most; so that the first of them leave the budget to the others."""


def parts_of(given: Namespace, made: Path) -> list[Part]:
    """`made`: a folder for what parts write for the report alone; what stands by itself goes beside the report."""
    usual = ("--device", given.device, "--scale", given.scale, "--seed", str(given.seed))
    beside = given.out.parent

    def own(module: str, name: str, *further: str, workloads: tuple[str, ...] = ()) -> Part:
        result = made / f"{name}.json"
        arguments = ("-m", f"benchmarks.accelerator.{module}", *usual, "--seconds", str(given.seconds))
        return Part(
            name=name,
            arguments=(*arguments, "--out", str(result), *further),
            seconds=SECONDS[module],
            result=result,
            workloads=workloads,
        )

    def cuda(name: str, *arguments: str, result: Path | None = None) -> Part:
        out = ("--out", str(result)) if result else ()
        return Part(
            name=name,
            arguments=("-m", *arguments, *out),
            seconds=SECONDS[name.split()[0]],
            result=result,
            needs_cuda=True,
        )

    ablations = ("benchmarks.ablations", "--device", "cuda", "--model", "random:bge-base-en", "--only")
    engines = [
        own("engine", model, "--workloads", *names, workloads=names)
        for model, each in groupby(all_of(given.scale, given.seed).values(), lambda workload: workload.model)
        for names in [tuple(workload.name for workload in each)]
    ]
    return [
        cuda(
            "tests", "pytest", "-c", "tests/gpu/pytest.ini", "-p", "no:cacheprovider", "-q", "--tb=short", "tests/gpu"
        ),
        own("limits", "limits"),
        *engines,
        cuda("maxsim", "benchmarks.maxsim_gpu", result=beside / "maxsim-gpu.json"),
        cuda("ablations b", *ablations, "b", result=made / SPLITTING),
        own("services", "services", workloads=(SERVICES,)),
        cuda("ablations", *ablations, *"abcdf", result=beside / "ablations-cuda.json"),
    ]
