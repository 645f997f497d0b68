"""`make serve`: workers and a frontend on fixed addresses until Ctrl-C, or until one of them ends."""

from shared.command import CommandParser, begin

if __name__ == "__main__":
    begin("demo")

import sys

from harness.member import MemberFailed
from harness.serving import run, serve

if __name__ == "__main__":
    parser = CommandParser(prog="python -m harness", description=__doc__)
    parser.add_argument("--model", default="minilm", help="what the worker serves (default: %(default)s)")
    parser.add_argument("--worker", default="127.0.0.1:50061", help="HOST:PORT of the worker (default: %(default)s)")
    parser.add_argument(
        "--frontend", default="127.0.0.1:50051", help="HOST:PORT of the frontend (default: %(default)s)"
    )
    parser.add_argument(
        "--http", default="", metavar="HOST:PORT", help="also speak HTTP on this address (default: gRPC only)"
    )
    parser.add_argument(
        "--devices",
        default="",
        metavar="DEVICE,...",
        help="a worker for each of these, as in cuda:0,cuda:1; the others listen on the ports after the first one's "
        "(default: one worker, on the first device that it finds)",
    )
    options = parser.parse_args()
    devices = [device for device in options.devices.split(",") if device]
    try:
        raise SystemExit(run(serve(options.model, options.worker, options.frontend, options.http, devices)))
    except MemberFailed as failed:  # before it was ready; the others have been stopped
        print(failed, file=sys.stderr)
        if "cannot be bound" in str(failed):  # the line has the flag of the service, this command has others
            print(
                "This command has --worker, --frontend and --http (make serve: WORKER=, FRONTEND=, HTTP=).",
                file=sys.stderr,
            )
        raise SystemExit(1) from None
