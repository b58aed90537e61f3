"""A record becomes a figure in few files: each is one that whoever reads the report has to open."""

import sys

from tests.launch.walked.sitecustomize import tracer
from tests.train.report.folders import make_run
from train.report.data.subject import read_subject
from train.report.pages import plots

MOST = 10  # from a line of metrics/*.jsonl on; four make sure of what others wrote


def test_a_record_becomes_a_figure_in_few_files(tmp_path):
    folders = [make_run(tmp_path / sync, sync=sync) for sync in ("single", "ddp")]
    files = set[str]()
    sys.setprofile(tracer(files.add))
    try:
        figure = plots.losses(read_subject(folders).losses)["first_losses"]
    finally:
        sys.setprofile(None)
    assert figure.startswith("<svg")
    assert {"train/report/data/reader.py", "train/report/pages/plots.py"} <= files
    assert len(files) <= MOST, f"{len(files)} files:\n{chr(10).join(sorted(files))}"
