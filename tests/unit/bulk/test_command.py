"""`python -m selvage.bulk` as a person meets it: flags, errors, what it prints, how it ends."""

import io
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from selvage.bulk import Failed
from selvage.bulk.__main__ import main
from selvage.bulk.flags import parse
from selvage.bulk.job import Meter
from selvage.bulk.sender import CARD_SECONDS, FIRST_SECONDS, Target, card_of
from selvage.errors import DeadlineExceeded
from selvage.messages.options import VectorOptions, explanations
from shared.errors import InputTooLong
from support.bulk_fakes import FakeClient, jsonl
from support.fake_frontend import FakeFrontend, dense_row, sparse_row


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--outputs", "dense,words"], "--outputs is 'dense,words', must be of dense, sparse, multi-vector"),
        (["--outputs", ","], "--outputs is ',', must be of"),
        (["--shard", "3/3"], "--shard is '3/3', must be I/N with I from 0 to N - 1"),
        (["--rows-per-shard", "0"], "--rows-per-shard: '0' is no number from 1 on"),
        (["--keep", "dense"], "--keep: the output has a column 'dense' of its own"),
        (["--keep", "a,b", "--keep", "a"], "--keep: 'a' is kept already"),
        (["--prompt", "q", "--prompt-name", "query"], "--prompt and --prompt-name exclude each other"),
        (["--tls-ca", "nothing.pem"], "--tls-ca, --tls-certificate or --tls-key: .*nothing.pem"),
        (["--key", "a\nb"], "--tls, --key or --fairness-key: the value of the metadata 'authorization'"),
        (["--data-type", "float8"], "--data-type: invalid choice: 'float8'"),
        (["--targets", "a:1"], "unrecognized arguments: --targets"),
        (["--format", "npy"], "unrecognized arguments: --format"),
        (["--engine", "minilm", "--tls"], "--engine and --tls exclude each other"),
        (["--engine", "minilm", "--target", "h:1"], "--engine and --target exclude each other"),
        (["--engine-option", "threads=1"], "--engine-option is for --engine"),
        (["--engine", "minilm", "--engine-option", "threads"], "--engine-option is .threads., must be NAME=VALUE"),
    ],
)
def test_flags_that_make_no_sense_are_named(flags: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, with status 2."""
    with pytest.raises(SystemExit) as ended:
        parse(["a.jsonl", "--output", "o", *flags])
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert re.search(line, lines[0])


def test_help_explains_every_option_of_a_vector(capsys: pytest.CaptureFixture[str]) -> None:
    """In the words of `Client.embed`."""
    with pytest.raises(SystemExit) as ended:
        parse(["--help"])
    assert ended.value.code == 0
    words = " ".join(capsys.readouterr().out.split())
    for name in ("dimensions", "sparse_top_k", "pool_factor", "max_tokens"):
        assert f"--{name.replace('_', '-')}" in words
        assert explanations(VectorOptions)[name] in words


def test_without_pyarrow_it_says_what_installs_it(tmp_path: Path) -> None:
    """Before anything else is done."""
    program = "import sys, runpy; sys.modules['pyarrow'] = None; runpy.run_module('selvage.bulk', run_name='__main__')"
    flags = [jsonl(tmp_path / "a.jsonl", ["one"]), "--output", str(tmp_path / "o")]
    ended = subprocess.run([sys.executable, "-c", program, *flags], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "the command needs pyarrow (the extra bulk): pip install pyarrow\n")


def test_file_to_file_over_grpc(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With key, priority and model of the flags; a line at the end, and nothing on the way where nobody watches."""
    source, folder = jsonl(tmp_path / "a.jsonl", ["one", "", "three", "bad"]), tmp_path / "o"
    with FakeFrontend() as fake:
        fake.refuse = lambda request: refused_text(getattr(request, "texts", ()))
        flags = ["--target", fake.address, "--key", "secret", "--model", "m", "--skip-errors", "--outputs"]
        assert main([source, "--output", str(folder), *flags, "dense,sparse"]) == 0
        assert {headers["authorization"] for headers in fake.metadata} == {"Bearer secret"}
        assert {headers["selvage-priority"] for headers in fake.metadata} == {"bulk"}
        assert {request.model for request in fake.asked} == {"m"}
    table = pq.read_table(folder)
    assert table["dense"].to_pylist() == [dense_row("one").tolist(), dense_row("three").tolist()]
    pairs = zip(table["sparse_ids"].to_pylist(), table["sparse_weights"].to_pylist(), strict=True)
    assert [dict(zip(*pair, strict=True)) for pair in pairs] == [sparse_row("one"), sparse_row("three")]
    printed = capsys.readouterr()
    assert printed.err == ""
    first, empty, bad, took = printed.out.splitlines()
    assert first == f"2 vectors in 1 shards of {folder}"
    assert empty == "1 empty texts were left out"
    assert bad == f"1 bad rows are in {folder}/_bad-*.jsonl"
    assert took.startswith("3 texts in 0:00:0")


def refused_text(texts: Sequence[str]) -> InputTooLong | None:
    """The service's refusal of a text that is "bad"."""
    if "bad" not in texts:
        return None
    field = f"texts[{list(texts).index('bad')}]"
    return InputTooLong(f"{field} has 602 tokens", field=field)


def test_failures_end_with_1_and_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No trace of the program."""
    source = jsonl(tmp_path / "a.jsonl", ["one"])
    flags = [source, "--output", str(tmp_path / "o"), "--target", "127.0.0.1:1", "--patience", "0"]
    assert main(flags) == 1
    assert capsys.readouterr().err.startswith("no target answers; 127.0.0.1:1 says: ")
    (tmp_path / "file").write_text("")
    with FakeFrontend() as fake:
        assert main([source, "--output", str(tmp_path / "file"), "--target", fake.address]) == 1
    assert capsys.readouterr().err == f"--output: {tmp_path / 'file'} cannot be used: File exists\n"


def test_a_target_that_does_not_even_refuse_is_told_soon() -> None:
    """The first request has a short deadline. This is told once; all later requests have more time."""
    client, lines = FakeClient(), list[str]()
    client.dead = DeadlineExceeded("Deadline Exceeded")
    with pytest.raises(Failed, match="no target answers; slow:1 says: Deadline Exceeded"):
        card_of([Target("slow:1", client)], 0.2, lines.append)
    assert lines == ["waiting up to 0.2 s for slow:1: Deadline Exceeded"]
    first, *others = client.deadlines
    assert (first, {*others}) == (FIRST_SECONDS, {CARD_SECONDS})
    assert first < CARD_SECONDS


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_tells_rate_and_time_left() -> None:
    """What an earlier command has finished does not count."""
    seconds = [0.0]
    screen = Screen()
    meter = Meter(screen, clock=lambda: seconds[0])
    seconds[0] = 100.0
    meter.begin(0.5)
    seconds[0] = 110.0
    meter.show(12_000, 0.6)
    seconds[0] = 110.1
    meter.show(12_001, 0.6)
    assert screen.getvalue() == "\r12,000 texts, 1,200 a second, 60%, 0:00:40 left"
