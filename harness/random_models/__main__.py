"""Writes a model of random weights into a folder, which any worker serves: to try a shape out, or to measure it.

`python -m harness.random_models qwen3-embedding-0.6b models/qwen3`, then `python -m gpu_worker --model models/qwen3`.
Its vectors mean nothing. A text may be of the words w0, w1, ..., each of which is one token.
"""

from shared.command import CommandParser, begin

if __name__ == "__main__":
    begin("worker")

import argparse
from pathlib import Path

from gpu_worker.device.placement import Placement
from harness.random_models import synthetic, writing
from shared.errors import ModelRefused

DTYPES = ("float32", "bfloat16", "float16")

if __name__ == "__main__":
    parser = CommandParser(
        prog="python -m harness.random_models",
        description=__doc__,
        epilog=f"Names: {', '.join(synthetic.known_names())}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", help="a name of those below, in any case")
    parser.add_argument("folder", type=Path, help="a folder that is not there yet, or is empty")
    parser.add_argument("--layers", type=int, default=0, help="as many, the first ones (default: all of the shape)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the weights (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="that makes the weights (default: %(default)s)")
    options = parser.parse_args()
    if options.layers < 0:
        parser.error(f"--layers {options.layers} must be 0 or more")
    if options.folder.exists() and (not options.folder.is_dir() or any(options.folder.iterdir())):
        parser.error(f"folder {options.folder} is there already, and is not empty")
    try:
        placement = Placement.choose(options.device, options.dtype)
        writing.write_named(options.name, options.folder, layers=options.layers, placement=placement)
    except (ValueError, ModelRefused) as refused:
        parser.error(str(refused))
    print(f"python -m gpu_worker --model {options.folder}")
