"""A loop of one's own under plain srun, without a launcher: `muster.init` finds its ranks."""

import re
import shlex

from tests.cluster.test_inside_a_job import in_shell
from tests.cluster.testbeds import Cluster
from tests.preload import interpreter
from tests.test_library_page import WHOLE_LOOP
from tests.train.workers import records


def test_srun_starts_the_whole_loop_of_the_page_on_four_nodes(cluster: Cluster, tmp_path):
    (tmp_path / "train.py").write_text(WHOLE_LOOP)
    step = shlex.join(["srun", "--nodes=4", "--ntasks-per-node=1", interpreter(), "train.py"])
    code, out, err = in_shell(cluster, f"cd {shlex.quote(str(tmp_path))}", f"{step} || exit 91")
    assert code == 0, (code, out, err)
    assert len(re.findall(r"step (?:6|12|18): \d", out)) == 3, out  # by rank 0 alone
    (run_dir,) = (tmp_path / "logs").iterdir()
    assert run_dir.name.endswith("-train-4")
    for rank in range(4):
        kinds = [one["kind"] for one in records(run_dir, rank)]
        assert (kinds.count("step"), kinds.count("eval")) == (18, 1)
    assert len(list((run_dir / "checkpoints").iterdir())) == 2
