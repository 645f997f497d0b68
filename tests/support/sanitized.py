"""The kernels for processors under AddressSanitizer and UndefinedBehaviorSanitizer: a plugin of pytest, and its build.

`python -m tests.support.sanitized` builds this processor's kernels with both, apart from the others, and
`pytest -p tests.support.sanitized` has tests use them. What a sanitizer finds ends the process with its report.
`make sanitized` does both.
"""

import sys
from dataclasses import replace
from pathlib import Path

from gpu_worker.kernels.cpu import library

FLAGS = (
    "-O1",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize=vptr",  # of which PyTorch's libraries tell nothing
    "-fno-sanitize-recover=all",
)

library.BUILT = Path(sys.prefix) / "sanitized"
library.INSTRUCTION_SETS = tuple(
    replace(instruction_set, flags=(*instruction_set.flags, *FLAGS)) for instruction_set in library.INSTRUCTION_SETS
)

if __name__ == "__main__":
    from gpu_worker.kernels.cpu.build import main

    raise SystemExit(main(sys.argv[1:]))
