"""What setup.cfg cannot say: a wheel has the files of today, and none of an earlier build."""

import shutil

from setuptools import setup
from setuptools.command.build_py import build_py


class FreshBuild(build_py):
    """Removes what an earlier build has left in `build/`, since all of that would go in as well."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(cmdclass={"build_py": FreshBuild})
