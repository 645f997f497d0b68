"""Results as Markdown, one function a benchmark. Knows no files."""

from collections.abc import Sequence
from typing import Any

from benchmarks.accelerator.goals import Figures


def offline(result: dict[str, Any]) -> str:
    """The engine against its peers, in Markdown."""
    machine, cases = result["machine"], result["cases"]
    # Peers that had no Python of their own are among our versions.
    versions = machine["versions"] | {name: own[name] for name, own in result.get("peers", {}).items()}
    mixes = [f"{case['texts']} texts, {case['mix']}" for case in cases]
    ratios = [ratio for case in cases for others in case["against"].values() for ratio in others.values()]
    lines = [
        f"The engine on three mixes of lengths (lognormal: mean 126, longest 512), MiniLM-L6, {result['threads']} "
        f"threads of {machine['processor']}, tokens/s by {_counted(result, ratios)}, token ids prepared on "
        "all sides, and the lowest cosine with float32 (batch sizes tried: "
        f"{', '.join(map(str, result.get('batch_sizes', [])))}; "
        f"torch {versions['torch']}, sentence-transformers {versions['sentence-transformers']}, "
        f"onnxruntime {versions['onnxruntime']}):",
        "",
        f"| | {' | '.join(f'{mix} | x selvage float32' for mix in mixes)} | lowest cosine |",
        f"|---|{'---:|' * (2 * len(cases) + 1)}",
    ]
    for name in cases[0]["sides"]:
        cells = []
        for case in cases:
            times = case["against"]["selvage float32"].get(name, {"ratio": 1.0})["ratio"]
            cells += [f"{case['sides'][name]['tokens_per_second']:,}", f"{1 / times:.2f}"]
        lowest = min(case["sides"][name]["lowest_cosine"] for case in cases)
        lines.append(f"| {name} | {' | '.join(cells)} | {lowest:.4f} |")
    return "\n".join(lines)


def _counted(result: dict[str, Any], ratios: Sequence[dict[str, float]]) -> str:
    """How seconds were made of all runs, and how well their ratios are known."""
    made = (
        f"{result['counted']} in {result['rounds'] // result['starts']} interleaved rounds of each of "
        f"{result['starts']} starts"
    )
    errors = [ratio["error"] for ratio in ratios if "error" in ratio]  # not of one start, nor in older files
    return f"{made}, ratios with standard errors of at most {max(errors):.1%}" if errors else made


def maxsim(result: dict[str, Any]) -> str:
    """MaxSim against its peers, in Markdown."""
    workload, machine, cases = result["workload"], result["machine"], result["cases"]
    versions = result["peers"]
    counts = [f"{case['documents']:,}" for case in cases]
    ratios = [ratio for case in cases for ratio in case["against"].values()]
    lines = [
        f"MaxSim of one query ({workload['query_rows']} x {workload['dimensions']}, float32) with "
        f"{' and '.join(counts)} documents of lognormal length (mean about {workload['mean_length']}), "
        f"{result['threads']} threads of {machine['processor']}, by {_counted(result, ratios)} (PyLate "
        f"{versions['pylate']}, maxsim-cpu {versions['maxsim-cpu']}, "
        f"sentence-transformers {machine['versions']['sentence-transformers']}). "
        "Rows lie end to end, as a step has them; from a list they are joined first. Padded batches are padded "
        "beforehand:",
        "",
        f"| | {' | '.join(f'{count} documents: documents/s | selvage is faster by' for count in counts)} |",
        f"|---|{'---:|' * 2 * len(counts)}",
    ]
    for name in cases[0]["sides"]:
        cells = []
        for case in cases:
            times = case["against"].get(name, {"ratio": 1.0})["ratio"]
            cells += [f"{case['sides'][name]['documents_per_second']:,}", f"{times:.2f}"]
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


def services(result: dict[str, Any]) -> str:
    """Both services under the named workloads, in Markdown."""
    machine = result["machine"]
    heads = ("workload", "model", "case", "requests/s", "spread", "tokens/s", "p50 ms", "p99 ms", "frontends' cores")
    lines = [
        f"Both services on one machine with their clients ({machine['processor']}, {machine['cores']} cores), "
        f"{result['rounds']} rounds of {result['seconds']:g} s a case, medians. The null server answers replies of the "
        "same size at once: so many times more the generator can drive.",
        "",
        f"| {' | '.join(heads)} | worker's cores | null server x |",
        f"|---|---|---|{'---:|' * 8}",
    ]
    for name, workload in result["workloads"].items():
        null = workload["null_server"]
        for case, side in workload["cases"].items():
            latency, spent = side["latency_ms"], side["cpu_seconds_per_second"]
            cells = [f"{side['requests_per_second']:,.1f}", f"{side['spread']:.0%}", f"{side['tokens_per_second']:,}"]
            cells += [f"{latency['p50']:,.1f}", f"{latency['p99']:,.1f}", f"{spent['frontends']:.2f}"]
            cells += [f"{spent['worker']:.2f}", f"{null['times_measured']:,.0f}" if case == null["beside"] else ""]
            lines.append(f"| {name} | {workload['model']} | {case} | {' | '.join(cells)} |")
    return "\n".join(lines)


def infinity(result: dict[str, Any]) -> str:
    """Both services against Infinity, in Markdown."""
    machine, peer, cases, nulls = result["machine"], result["peer"], result["cases"], result["null_server"]
    names, others = list(cases[0]["sides"]), list(cases[0]["ours_over"])
    failed = sum(side["errors"] for case in cases for side in case["sides"].values())
    least = min(null["times_measured"] for null in nulls.values())
    lines = [
        f"Both services against Infinity {peer['infinity-emb']} over HTTP (--no-bettertransformer, --no-compile "
        f"unless named, batches of {result['batch_size']}, memory kept as our worker keeps it, torch "
        f"{peer['torch']}, transformers {peer['transformers']}): MiniLM-L6 in float32, one text a request, "
        f"{result['threads']} threads of {machine['processor']} a server, medians of {result['rounds']} interleaved "
        f"rounds of {result['seconds']:g} s, and the {result['counted']} of each round's own ratio. Clients run on the "
        f"same {machine['cores']} cores; null servers reach {least:,.0f} times the fastest case or more. "
        f"{f'{failed:,} requests' if failed else 'No request'} failed:",
        "",
        f"| | {' | '.join(f'{name}: requests/s | p50 ms | p99 ms' for name in names)} "
        f"| {' | '.join(f'selvage / {name} | goal' for name in others)} |",
        f"|---|{'---:|' * (3 * len(names) + 2 * len(others))}",
    ]
    for case in cases:
        cells = []
        for side in case["sides"].values():
            latency = side["latency_ms"]
            cells += [f"{side['requests_per_second']:,.1f}", f"{latency['p50']:,.1f}", f"{latency['p99']:,.1f}"]
        for over in case["ours_over"].values():
            cells += [f"{over['figure']} {over['ratio']:.2f}", over["goal"]]
        lines.append(f"| {case['case']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def breakdown(result: dict[str, Any]) -> str:
    """Where the time of a request goes, and the CPU seconds of both services over the engine's, in Markdown."""
    machine, cases = result["machine"], result["cases"]
    shown = ("tokenize", "queue", "transfer", "compute", "postprocess", "total")
    lines = [
        f"Milliseconds a request, median (p99), through both services with {result['model']} on one machine with the "
        f"clients ({machine['processor']}, {machine['cores']} cores), {result['rounds']} rounds of "
        f"{result['seconds']:g} s a case in a closed loop, big requests of many clients counted to their end. Replies "
        "tell their own times. What is left of the client's "
        "latency is divided, at its median, into client and wire, as a null server shows them on an idle machine, and "
        "the frontend's rpc with all waiting for a core. "
        "Transfer is between frontend and worker. Medians do not add up.",
        "",
        f"| | requests/s | client and wire | rpc and waiting | {' | '.join(shown)} |",
        f"|---|{'---:|' * (3 + len(shown))}",
    ]
    for name, case in cases.items():
        times, outside = case["milliseconds"], case["milliseconds"]["client and wire"]
        cells = [f"{case['requests_per_second']:,.1f}", f"{outside['bare']:,.2f}"]
        cells += [f"{outside['rpc of the frontend']:,.2f}"]
        cells += [f"{times[part]['median']:,.2f} ({times[part]['p99']:,.2f})" for part in shown]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        "",
        "CPU seconds a million tokens where the cores are saturated, medians of the rounds, as is what each round "
        "adds. The engine alone embeds the same texts as one job in a process of its own, before and after the "
        "services:",
        "",
        "| | engine alone | worker | frontend | worker adds | frontend adds | both add | goal |",
        f"|---|{'---:|' * 7}",
    ]
    for name, case in cases.items():
        if time := case.get("processor_time"):
            spent = time["cpu_seconds_per_million_tokens"]
            cells = [f"{spent[side]:,.1f}" for side in ("engine alone", "worker", "frontend")]
            cells += [f"{time[share]:+.1%}" for share in ("added_by_worker", "added_by_frontend", "added")]
            lines.append(f"| {name} | {' | '.join(cells)} | at most {time['goal']:.0%} |")
    return "\n".join(lines)


def engine_profile(result: dict[str, Any]) -> str:
    """Where the engine's time goes, and what the processor allows at most, in Markdown."""
    parts = list(result["cases"][0]["shares"])
    lines = [
        f"The engine with {result['model']} on the same mixes, {result['threads']} threads of "
        f"{result['machine']['processor']}. GFLOP/s of linear layers and attention stand beside those of one large "
        "product by the same library. If nothing but the linear layers took time, there would be as many tokens/s as "
        "the last column says:",
        "",
        f"| | dtype | tokens/s | {' | '.join(parts)} | GFLOP/s: linear layers | attention | large product "
        "| tokens/s at most |",
        f"|---|---|{'---:|' * (5 + len(parts))}",
    ]
    for case in result["cases"]:
        cells = [f"{case['tokens_per_second']:,}", *(f"{share:.0%}" for share in case["shares"].values())]
        cells += [f"{each:,}" for each in (*case["gflops"].values(), case["product_gflops"])]
        lines.append(
            f"| {case['mix']} | {case['dtype']} | {' | '.join(cells)} | {case['linear_alone_tokens_per_second']:,} |"
        )
    return "\n".join(lines)


def repeat(result: dict[str, Any]) -> str:
    """How far the ratios of a second run lie from the first's, in Markdown."""
    processors = dict.fromkeys(name for found in result["benchmarks"].values() for name in found["processors"])
    lines = [
        f"Ratios of a whole second run against those of the first ({'; '.join(processors)}): how many moved by "
        f"{result['near_is']:.0%} at most, and by how much all of them, in medians and at most.",
        "",
        "| benchmark | ratios | moved little | median move | largest move | which |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for name, found in result["benchmarks"].items():
        moves = sorted(found["ratios"], key=lambda each: abs(each["moved"]))
        middle, most = moves[len(moves) // 2], moves[-1]
        cells = [f"{found['of']}", f"{found['near']}", f"{abs(middle['moved']):.1%}", f"{abs(most['moved']):.1%}"]
        lines.append(f"| {name} | {' | '.join(cells)} | {most['ratio']} |")
    return "\n".join(lines)


def ablations(result: dict[str, Any]) -> str:
    """Each idea on and off, in Markdown: ratios above 1 say that the idea is faster."""
    lines = [
        f"Each idea on and off in one process ({result['threads']} threads of {result['machine']['processor']}), by "
        "the median of each interleaved round's own ratio. Above 1 the idea is faster; `nothing` is within 5 % of 1, "
        "`unclear` has quartiles on both sides of 1.",
        "",
        "| | case | ours | against | times faster | quartiles | verdict |",
        "|---|---|---|---|---:|---:|---|",
    ]
    for letter, ablation in result["ablations"].items():
        lines.append(f"| **{letter}** | **{ablation['idea']}** | | | | | |")
        for case in ablation["cases"]:
            for other, figures in case["against"].items():
                time = figures["time"]
                quartiles = f"{time['lower_quartile']:.2f} to {time['upper_quartile']:.2f}"
                cells = [case["case"], case["ours"], other, f"{time['ratio']:.2f}", quartiles, time["verdict"]]
                lines.append(f"| {letter} | {' | '.join(cells)} |")
    return "\n".join(lines)


def accelerator(result: dict[str, Any]) -> str:
    """The engine on an accelerator beside its limits and goals, in Markdown."""
    limits, goals, machine = result["limits"], result["goals"], result["machine"]
    reached = "whose limits were not measured"
    if limits:
        flops, memory = limits["flops_per_second"] / 1e12, limits["bytes_per_second"] / 1e12
        reached = f"{limits['device']} (torch {limits['torch']}), which reached {flops:,.0f} TFLOP/s, {memory:.2f} TB/s"
    lines = [
        f"One accelerator: {reached}; commit {machine['commit']}. Shapes as published with random weights in bfloat16, "
        "the engine alone unless services are named. A limit is what the products of a token allow at that rate. "
        f"{goals['published_by']}'s figures and the goals are for one {goals['device']}.",
        "",
        f"| workload | in flight | requests/s | tokens/s | p50 ms | p99 ms | of the limit | {goals['published_by']} "
        "| goal | met |",
        f"|---|{'---:|' * 9}",
    ]
    for row in result["rows"]:
        if "latency_ms" not in row:
            why = f"failed: {row['error']}" if "error" in row else f"skipped: {row['skipped']}"
            lines.append(f"| {row['workload']} | {why} {'| ' * 8}|")
            continue
        met = {True: "yes", False: "no", None: ""}[row.get("goal_met")]
        share = f"{row['share_of_limit']:.0%}" if "share_of_limit" in row else ""
        cells = [row["in_flight"], f"{row['requests_per_second']:,.1f}", f"{row['tokens_per_second']:,}"]
        cells += [f"{row['latency_ms'][name]:,.2f}" for name in ("p50", "p99")]
        cells += [share, *(Figures(**row.get(name, {})).shown() for name in ("published", "goal")), met]
        lines.append(f"| {row['workload']} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)
