"""`make serve`: one worker and one frontend on fixed addresses until Ctrl-C."""

import argparse

from harness.running import run
from harness.stack import stack
from shared.serving import until_told_to_stop


async def main(arguments: argparse.Namespace) -> None:
    print(f"Starting a worker with {arguments.model} and a frontend ...", flush=True)
    worker, frontend = {"listen": arguments.worker}, {"listen": arguments.frontend}
    async with stack(arguments.model, worker=worker, frontend=frontend) as pair:
        print(f"Ready. Worker {pair.worker.address}, frontend {pair.frontends[0].address}. Ctrl-C stops.", flush=True)
        await until_told_to_stop()
        print("Stopping ...", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m harness", description=__doc__)
    parser.add_argument("--model", default="minilm", help="what the worker serves (default: %(default)s)")
    parser.add_argument("--worker", default="127.0.0.1:50061", help="HOST:PORT of the worker (default: %(default)s)")
    parser.add_argument(
        "--frontend", default="127.0.0.1:50051", help="HOST:PORT of the frontend (default: %(default)s)"
    )
    run(main(parser.parse_args()))
