"""Proves compose.yaml on a real engine: `make compose-test` builds, starts, kills, hangs, scales, rolls and stops it.

Prints a log of what was done and seen, and fails where a promise did not hold. Without an engine it says so and ends.

    SELVAGE_BUILD         what builds an image, with arguments of its own (default: docker build)
    SELVAGE_HEALTHCHECKS  a command that runs a container's health check once, for engines that leave that to systemd
                          where there is none: podman healthcheck run
    COMPOSE, DOCKER       other programs than docker and its compose
    PROMETHEUS_IMAGE      adds Prometheus of the profile monitoring
    REGISTRY, PORT        as in compose.yaml
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from callers import Callers
from engine import (
    DOCKER,
    IMAGES,
    MONITORED,
    REGISTRY,
    ROOT,
    STARTED,
    build,
    compose,
    inside,
    inspect,
    missing_engine,
    run,
    run_quietly,
    say,
    until,
)

PORT = os.environ.get("PORT", "50051")
HEALTHCHECKS = shlex.split(os.environ.get("SELVAGE_HEALTHCHECKS", ""))


@contextmanager
def health_checks() -> Iterator[None]:
    """Run one after the other as long as this lasts, where the engine does not."""
    done = threading.Event()

    def check() -> None:
        while HEALTHCHECKS and not done.wait(8):
            found = run([DOCKER, "ps", "-q", "--filter", "label=com.docker.compose.project=selvage-proof"]).split()
            for container in found:
                subprocess.Popen(
                    [*HEALTHCHECKS, container], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                ).wait()

    thread = threading.Thread(target=check)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def ready_replicas() -> int:
    """As the proxy sees them."""
    ask = "exec 3<>/dev/tcp/127.0.0.1/8404; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
    page = subprocess.run([DOCKER, "exec", *compose.ids("proxy"), "bash", "-c", ask], capture_output=True, text=True)
    return len(re.findall(r'^haproxy_server_status\{proxy="frontends",server="\w+",state="UP"\} 1', page.stdout, re.M))


def counted(method: str = "Embed") -> list[int]:
    """Calls that each frontend has answered."""
    code = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9464/metrics').read().decode())"
    line = re.compile(rf'^grpc_server_handled_total\{{grpc_code="OK",grpc_method="{method}",.*\}} ([\d.]+)$', re.M)
    return [sum(int(float(each)) for each in line.findall(inside(name, code))) for name in compose.ids("frontend")]


def limits() -> None:
    fields = ("Memory", "PidsLimit", "LogConfig.Type", "LogConfig.Config", "ReadonlyRootfs")
    template = " ".join(f"{{{{.HostConfig.{field}}}}}" for field in fields)
    for service in ("proxy", "frontend", "worker-cpu"):
        [container] = compose.ids(service)[:1]
        files = run([DOCKER, "exec", container, "bash", "-c", "ulimit -n; id -u"]).split()
        say(f"  {service}: memory, processes, log, read-only: {inspect(container, template)}; files, user: {files}")
        assert int(inspect(container, "{{.HostConfig.Memory}}")) > 0
        assert int(inspect(container, "{{.HostConfig.PidsLimit}}")) > 0
        assert files == ["10240", "10001"]


def killed(service: str, callers: Callers, how: str, what: str) -> None:
    """Kills or stops the processes of one container from inside, and waits until it has been started again."""
    container = compose.ids(service)[0]
    replicas = ready_replicas()
    began = inspect(container, "{{.State.StartedAt}}")
    mark = time.monotonic()
    run_quietly([DOCKER, "exec", container, "python", "-c", f"import os, signal; os.kill(-1, signal.{how})"])
    back = until(f"{service} is started again", lambda: inspect(container, "{{.State.StartedAt}}") != began)
    # The proxy's checks take six seconds to tell; what comes back sooner it never missed.
    until("the proxy has seen it", lambda: time.monotonic() > mark + 8 or ready_replicas() != replicas)
    until("the proxy sees all", lambda: ready_replicas() == replicas)
    ready = time.monotonic() - mark
    time.sleep(1)
    say(f"{what}: started again after {back:.1f} s, all ready after {ready:.1f} s; {callers.told(mark)}")


def rolled(service: str, callers: Callers) -> None:
    before, mark = compose.ids(service), time.monotonic()
    os.environ["COMPOSE"], os.environ["DOCKER"] = shlex.join(compose.program), DOCKER
    run(["deploy/roll.sh", service])
    after = compose.ids(service)
    assert len(after) == len(before)
    assert not set(after) & set(before)
    image = inspect(after[0], "{{.Image}}")
    assert (
        image == run([DOCKER, "image", "inspect", "--format", "{{.Id}}", f"{REGISTRY}selvage-{service}:latest"]).strip()
    )
    time.sleep(1)
    say(f"rolled {service}, {len(after)} containers: {time.monotonic() - mark:.0f} s; {callers.told(mark)}")
    assert not callers.lost(mark), callers.lost(mark)


def changed_sources() -> Path:
    """A copy of the checkout with a line more in what both images hold."""
    copy = Path(tempfile.mkdtemp())
    for name in run(["git", "ls-files", "--cached", "--others", "--exclude-standard"]).splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    with (copy / "shared/server/grpc_server.py").open("a") as file:
        file.write("# changed\n")
    return copy


def balanced_without_the_proxy() -> None:
    """By calls of another kind than those of the callers."""
    before = counted("Tokenize")
    code = """
from selvage import Client
with Client('dns:///frontend:50051') as client:
    for _ in range(80):
        client.tokenize('boats')
"""
    inside(compose.ids("frontend")[0], code)
    shares = [late - early for early, late in zip(before, counted("Tokenize"), strict=True)]
    say(f"80 calls inside the network, without the proxy: shares of the frontends {shares}")
    assert (len(shares), sum(shares)) == (4, 80)
    assert min(shares) >= 10


def scraped() -> None:
    """Every target of Prometheus is up."""
    address = "http://127.0.0.1:9090/api/v1/query?query=sum%20by%20(job)(up)"

    def all_up() -> bool:
        answer = urllib.request.urlopen(address).read().decode()
        return dict(re.findall(r'"job":"([\w-]+)"\},"value":\[[\d.]+,"(\d+)"\]', answer)) == {
            "selvage-frontend": "4",
            "selvage-worker": "1",
            "selvage-proxy": "1",
        }

    say(f"Prometheus reads all four frontends, the worker and the proxy: after {until('scraped', all_up):.0f} s")


def prove(callers: Callers) -> None:
    time.sleep(5)
    say(f"calls through the proxy: {callers.told(STARTED)}")
    assert not callers.lost(STARTED)
    killed("worker-cpu", callers, "SIGKILL", "kill -9 of the worker")
    killed("frontend", callers, "SIGKILL", "kill -9 of one frontend")
    killed("frontend", callers, "SIGSTOP", "one frontend hangs (SIGSTOP)")
    killed("worker-cpu", callers, "SIGSTOP", "the worker hangs (SIGSTOP)")

    mark = time.monotonic()
    compose.up("--scale", "frontend=4")
    took = until("four replicas", lambda: ready_replicas() == 4)
    say(f"scaled to 4, the proxy sees them after {took:.1f} s; {callers.told(mark)}")
    assert not callers.lost(mark), callers.lost(mark)
    before, mark = counted(), time.monotonic()
    time.sleep(5)
    shares = [late - early for early, late in zip(before, counted(), strict=True)]
    say(f"shares of the frontends in five seconds: {shares}")
    assert min(shares) > 0
    assert not callers.lost(mark)
    balanced_without_the_proxy()
    if MONITORED:
        scraped()

    copy = changed_sources()
    build(copy, ["frontend", "worker-cpu"])
    shutil.rmtree(copy)
    rolled("frontend", callers)
    rolled("worker-cpu", callers)

    mark = time.monotonic()
    compose.up("--scale", "frontend=2")
    until("two replicas", lambda: ready_replicas() == 2)
    time.sleep(2)
    say(f"scaled back to 2; {callers.told(mark)}")
    assert not callers.lost(mark), callers.lost(mark)


def main() -> None:
    if why := missing_engine():
        print(f"compose-test skipped: {why}")
        return
    engine = run([DOCKER, "version", "--format", "{{.Server.Version}}"]).strip()
    say(f"engine {engine}, compose {compose('version', '--short').strip()}")
    if HEALTHCHECKS:
        say(f"without systemd this engine runs no health checks by itself; `{shlex.join(HEALTHCHECKS)}` runs them here")
    if MONITORED:
        say(f"Prometheus is {os.environ['PROMETHEUS_IMAGE']}")
    build(ROOT, list(IMAGES))
    with health_checks():
        try:
            mark = time.monotonic()
            compose.up("--scale", "frontend=2")
            say(f"up: {time.monotonic() - mark:.1f} s")
            until("two replicas", lambda: ready_replicas() == 2)
            say(f"all ready: {time.monotonic() - mark:.1f} s")
            limits()
            with Callers(f"127.0.0.1:{PORT}") as callers:
                prove(callers)
                say(f"the open stream: {callers.stream_told()}")
        finally:
            mark = time.monotonic()
            compose("down", "--volumes", "--timeout", "45")
            say(f"down: {time.monotonic() - mark:.1f} s")
    left = run([DOCKER, "ps", "-aq", "--filter", "label=com.docker.compose.project=selvage-proof"]).split()
    assert not left
    say("nothing is left; all promises held")


if __name__ == "__main__":
    main()
