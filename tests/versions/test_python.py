"""What is loaded into users' processes runs on Python 3.10; the toolkit's commands need 3.11."""

import vermin

from tests.versions.names import LIBRARY, REPOSITORY


def test_the_library_runs_on_python_3_10():
    config = vermin.Config()
    config.set_eval_annotations(True)
    newer = {}
    for path in (file for folder in LIBRARY for file in (REPOSITORY / folder).rglob("*.py")):
        visitor = vermin.visit(path.read_text(encoding="utf-8"), config)
        if visitor.minimum_versions()[1] > (3, 10):
            newer[str(path.relative_to(REPOSITORY))] = visitor.output_text()
    assert newer == {}
