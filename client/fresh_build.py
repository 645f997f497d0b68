"""The build command of both distributions. It starts from an empty folder.

setuptools itself would also put what an earlier build has left there into the wheel, such as modules that are no longer
in the sources.
"""

import shutil

from setuptools.command.build_py import build_py


class FreshBuild(build_py):
    """Copies the modules of a distribution to its build folder."""

    def run(self) -> None:
        """Empties the build folder, and builds."""
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
