"""A project is what git says, whatever its folder is called."""

import os
import subprocess

from muster.run_files import project_of


def test_a_folder_below_belongs_to_the_project_whose_name_need_not_be_utf_8(tmp_path):
    project = tmp_path / os.fsdecode(b"caf\xe9\r\n")
    (project / "src").mkdir(parents=True)
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    assert project_of(project / "src") == project
    assert project_of(tmp_path) == tmp_path
