"""The published tables: what is asked, and who answers. No vLLM: fakes over HTTP, and our own engine."""

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest
from tokenizers import Tokenizer

from benchmarks.load.loops import Call
from benchmarks.load.outcome import LoadFailed
from benchmarks.load.processor import CpuSeconds, is_running
from benchmarks.load.target import HttpTarget, texts_of
from benchmarks.peers.process import free_port
from benchmarks.published import models, servers, turns
from benchmarks.published.asking import body, rows_of
from benchmarks.published.driver import COMPARED, Window, drive, figures, seeds
from benchmarks.published.row import OURS, Row
from benchmarks.published.rows import SHORT_STEPS, rows
from benchmarks.published.servers import Launch, ReadyServer, launches, started
from benchmarks.published.turns import Trial
from benchmarks.workloads import INSTRUCTED
from harness.random_models import synthetic
from support.published import CASE, ROW, fake


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "MODELS", tmp_path)
    monkeypatch.setattr(models, "MODELS", tmp_path)


@pytest.fixture
def server() -> Iterator[ReadyServer]:
    with started("fake", fake("rows")) as running:
        yield running


@pytest.mark.parametrize("row", rows().values(), ids=lambda row: row.name)
def test_every_text_has_its_tokens(row: Row) -> None:
    """By the tokenizer that both servers read; of MiniLM's, test_workloads tells."""
    tokenizer = Tokenizer.from_str(synthetic.tokenizer(30_000).content.decode())
    for case in row.cases:
        for stream in case.streams:
            workload = replace(stream.workload, requests=stream.workload.requests[:3])
            if not workload.model.startswith("random:"):
                continue
            for texts, lengths in zip(texts_of(workload, 1), workload.requests, strict=True):
                assert [len(tokenizer.encode(text).ids) for text in texts] == list(lengths)


def test_prompts_of_token_rows_repeat_three_words_and_differ_between_requests() -> None:
    """A prefix cache would answer for prompts that it has seen. Prompts of a request have nothing in common, or the
    shorter ones are the beginnings of the longer ones."""
    apart, alike = (texts_of(case.stream.workload, 1) for case in rows()["token-embeddings"].cases)
    for requests in (apart, alike):
        assert [len(texts) for texts in requests] == [16] * 64
        prompts = [text.split() for texts in requests for text in texts]
        assert all(words == (words[:3] * len(words))[: len(words)] for words in prompts)
    assert len({tuple(text.split()[:3]) for texts in apart for text in texts}) > 0.99 * 64 * 16
    assert all(longest.startswith(text) for *texts, longest in alike for text in texts)
    assert len({texts[-1] for texts in alike}) == 64


def test_prompts_of_the_burst_have_an_instruction_of_21_tokens() -> None:
    """With [CLS]; the reference leaves out as many as our loader does, by the mark in the text."""
    (case,) = rows()["instruct-burst"].cases
    tokenizer = Tokenizer.from_str(synthetic.tokenizer(30_000).content.decode())
    prompts = [text for (text,) in texts_of(case.stream.workload, 1)]
    befores = {text.partition(INSTRUCTED)[0] + INSTRUCTED for text in prompts}
    assert [len(tokenizer.encode(before).ids) - 1 for before in befores] == [21]
    assert len(set(prompts)) == len(prompts) == 500


def test_the_short_texts_are_asked_alone_and_beside_long_ones() -> None:
    """The same short texts; the long ones all differ."""
    alone, *busy = rows()["short-beside-long"].cases
    for case, tokens in zip(busy, (4096, 8192), strict=True):
        assert alone.stream == case.stream
        assert case.beside is not None
        long = [text for (text,) in texts_of(case.beside.workload, 2)]
        assert len(set(long)) == len(long) == 64
        assert all(len(text.split()) + 2 == tokens for text in long)


def test_rows_of_an_answer_come_in_the_order_of_the_texts(server: ReadyServer) -> None:
    """Whatever order the server gives them in; other counts of tokens are an error."""
    texts = ["a b c", "a"]
    with urlopen(f"{server.url}/v1/embeddings", body("dense", "fake", texts)) as reply:
        answer = reply.read()
    assert [rows.tolist() for rows in rows_of("dense", answer, [5, 3])] == [[[5, 1]], [[3, 1]]]
    with pytest.raises(ValueError, match="have 9 tokens, and the server counted 8"):
        rows_of("dense", answer, [5, 4])


def test_token_rows_and_scores_are_read_too() -> None:
    """A matrix for each text; scores by the documents' order, not by rank."""
    sent = json.loads(body("tokens", "fake", ["a"]))
    assert (sent["task"], sent["encoding_format"]) == ("token_embed", "base64")
    data = [{"index": 0, "data": "AACAPwAAAEAAAEBAAACAQA=="}]
    (rows,) = rows_of("tokens", json.dumps({"data": data, "usage": {"prompt_tokens": 2}}).encode(), [2])
    assert rows.tolist() == [[1, 2], [3, 4]]
    assert json.loads(body("rerank", "fake", ["q", "a", "b"])) == {
        "model": "fake",
        "query": "q",
        "documents": ["a", "b"],
    }
    results = [{"index": 1, "relevance_score": 0.5}, {"index": 0, "relevance_score": 0.25}]
    (scores,) = rows_of("rerank", json.dumps({"results": results}).encode(), [1, 2, 2])
    assert scores.tolist() == [[0.25, 0.5]]


async def test_clients_report_rates_latencies_errors_and_cpu(server: ReadyServer) -> None:
    """Of the window; refused calls are errors and no latencies."""
    told = await drive(ROW, CASE, server.url, 0.5, server.pids)
    assert told["errors"] == 0
    assert told["tokens/s"] == pytest.approx(7 * told["requests/s"], rel=0.1)
    assert told["p50 ms"] <= told["p95 ms"] <= told["p99 ms"]
    assert told["fake: peak MiB"] > 1
    assert told["fake: CPU ms/request"] >= 0  # ticks of 10 ms
    assert told["clients: CPU ms/request"] >= 0
    with started("refusing", fake("refuse")) as refusing:
        told = await drive(ROW, CASE, refusing.url, 0.5, refusing.pids)
    assert told["errors"] > 0


def test_short_calls_are_sent_as_interactive_too() -> None:
    """Each with the flags of the side that has them by default; vLLM knows no priority. Long texts have the default."""
    row = rows()["short-beside-long"]
    assert set(row.priorities.values()) == {"interactive"}
    assert {name.rpartition("interactive")[0].rstrip(", ") for name in row.priorities} == {"", SHORT_STEPS}
    for name in row.priorities:
        assert row.ours[name] == row.ours[name.rpartition("interactive")[0].rstrip(", ")]
    sides = launches(replace(row, vllm={}), [0])
    assert {side for side, launch in sides.items() if launch.priority} == {
        f"selvage, {name}" for name in row.priorities
    }


def test_the_measured_stream_alone_has_the_priority(server: ReadyServer) -> None:
    """The calls beside it have none."""
    case = replace(CASE, stream=replace(CASE.stream, requests=20), beside=replace(CASE.stream, requests=10))
    asyncio.run(drive(ROW, case, server.url, 0.5, {}, "interactive"))
    with urlopen(f"{server.url}/health") as reply:
        priorities = json.loads(reply.read())["priorities"]
    assert priorities == {"interactive": 20 + 1, "": 10 + 1}  # a stream's first call is checked before anything counts


@pytest.mark.parametrize("row", rows().values(), ids=lambda row: row.name)
def test_a_server_has_seen_no_text_that_counts(row: Row) -> None:
    """Texts differ between rounds, cases and streams, and from those that are compared: vLLM keeps what it computed."""
    chosen = [seed for number in range(3) for case in row.cases for seed in seeds(row, case, number)]
    assert len({*chosen, COMPARED}) == len(chosen) + 1


async def test_the_call_that_checks_a_server_has_texts_that_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """So what it tells the server is no text that counts."""
    sent: list[bytes] = []

    async def post(self: HttpTarget, body: bytes) -> str:
        sent.append(body)
        return "OK"

    monkeypatch.setattr(HttpTarget, "_post", post)
    await drive(ROW, CASE.asking(2), "http://nowhere", 0.5, {}, number=1)
    first, *counted = sent
    assert json.loads(first)["input"] == texts_of(CASE.stream.workload, COMPARED)[0]
    expected = texts_of(CASE.stream.workload, *seeds(ROW, CASE, 1))
    assert [json.loads(body)["input"] for body in counted] == expected
    assert first not in counted


@pytest.mark.parametrize("reconnecting", [True, False])
def test_the_published_client_has_a_connection_a_request(server: ReadyServer, reconnecting: bool) -> None:
    """Others keep theirs."""
    case = replace(CASE, stream=replace(CASE.stream, requests=20))
    asyncio.run(drive(replace(ROW, reconnecting=reconnecting), case, server.url, 0.5, {}))
    with urlopen(f"{server.url}/health") as reply:
        connections = json.loads(reply.read())["connections"]
    assert (connections > 20) == reconnecting


def window(measured: list[float], beside: list[float]) -> Window:
    calls = [[Call(due=end - 0.5, ended=end, status="OK", request=0) for end in ends] for ends in (measured, beside)]
    spent = {"worker": CpuSeconds(whole=4.0, event_loop=0.0)}
    return Window(calls=calls, spent=spent, start=10.0, stop=14.0)


def test_figures_are_of_the_measured_stream_and_what_runs_beside_has_its_own() -> None:
    """CPU is of everything, over the measured requests."""
    case = replace(CASE, beside=replace(CASE.stream, clients=1))
    told = figures(case, window([9, 10, 11, 12, 13, 14.5], [9, 12]))
    assert told["requests/s"] == 1
    assert told["beside: requests/s"] == pytest.approx(1 / 3)
    assert told["worker: CPU ms/request"] == 1000
    with pytest.raises(LoadFailed, match="texts of 5 tokens: no answer in the window"):
        figures(case, window([9], [11]))
    assert figures(case, window([11, 12], [9]))["beside: requests/s"] == 0


def test_a_call_that_outlasts_the_window_counts_where_latency_is_measured() -> None:
    """It is the slowest, and perhaps the only one; elsewhere it counts where no other does."""
    slow = Call(due=9.5, ended=20.0, status="OK", request=0)
    outlasted = replace(window([], []), calls=[[slow]])
    assert figures(CASE, outlasted, latency=True)["p99 ms"] == 10_500
    assert figures(CASE, outlasted)["p99 ms"] == 10_500


def test_a_server_ends_with_all_that_it_started() -> None:
    """Its processes are known by name while it runs, its time to ready and its memory too."""
    with started("fake", fake("helper")) as running:
        assert len(running.pids) == 2
        assert running.seconds > 0
        assert all(value > 1 for value in running.rest.values())
    assert not any(map(is_running, running.pids.values()))


def test_a_server_that_ends_before_it_is_ready_is_named_with_the_end_of_its_log() -> None:
    """Without the lines that say nothing."""
    program = "print('the reason'); print(' - leaked type x'); raise SystemExit(3)"
    launch = Launch(programs={"broken": [sys.executable, "-c", program]}, url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(SystemExit, match=r"side: broken ended with 3\nthe reason\n\("), started("side", launch):
        pass


def test_several_frontends_share_a_worker_and_the_clients() -> None:
    """Each with its own address; a deadline of ten minutes, and no refusal for a wait, as vLLM has none."""
    launch = launches(replace(ROW, ours={"4 frontends": ()}, frontends={"4 frontends": 4}, vllm={}), [0])
    (several,) = launch.values()
    assert list(several.programs) == ["worker", "frontend", "frontend 2", "frontend 3", "frontend 4"]
    assert len(set(several.url.split(","))) == 4
    assert "--queue-seconds=0" in several.programs["worker"]
    assert "--default-timeout=600" in several.programs["frontend 4"]
    assert not several.offline


def test_what_a_server_adds_is_told_beside_its_own_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Online minus offline; nothing where the engine fails."""
    row = replace(rows()["clients"], dtype="float32")
    launch = launches(replace(row, vllm={}), [0])[OURS]
    broken = replace(launch, engine={"engine": "none"})
    trial = Trial(row=row, sides={OURS: launch, "broken": broken}, seconds=0.2, scale="small", model=[])
    told = turns.without_server(trial, OURS, {"p50 ms": 1e6})
    assert 0 < told["p50 ms without a server"] < 1e6
    assert told["p50 ms that a server adds"] == 1e6 - told["p50 ms without a server"]
    assert turns.without_server(trial, "broken", {"p50 ms": 1.0}) == {}
