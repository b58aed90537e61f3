"""Check that the benchmark compares like with like: peers train what we train, sample for sample.

    python -m tests.benchmarks.check

`make bench` begins with it. Every peer and one case of ours train once on two workers of this
machine, and start-up is measured once. Tables, targets, figures and flags are checked with made-up
numbers. It stops at the first check that fails and shows the line.
"""

import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest import mock

import numpy as np

from configs import cli
from configs.settings.train import TrainConfig
from muster.checkout import CHECKOUT
from muster.errors import MusterError, UsageError
from tests.benchmarks import bench, figure, made, recovery, startup, targets
from tests.benchmarks.cases import BASE, CASES, GPT, KNOWN, OURS, Case, chosen
from tests.benchmarks.places import LOOPBACK, Place, Steps, machines
from tests.benchmarks.results import Results, table
from tests.benchmarks.trees import Tree, compared, in_turns
from tests.fork_server import interpreter

STEPS = 4
CLOSE = 1e-5  # limit for differences of float32 losses
WRONG_FLAGS = (
    (["--rates", "fast"], "--rates fast"),
    (["--steps", "2"], "--steps 2"),
    (["--batch-size", "63"], "--batch-size 63 is not a multiple of 4"),
    (["--data-dir", "/nowhere"], "--data-dir /nowhere"),
    (["--only", "fast"], "--only fast: unknown; known: plain_ddp, "),
)


def main() -> None:
    for check in CHECKS:
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder))
        print(f"{check.__name__}: {time.perf_counter() - begun:.1f} s", file=sys.stderr)


def wrong_flags_are_refused_before_anything_runs(folder: Path) -> None:
    for flags, message in WRONG_FLAGS:
        try:
            bench.main(["--rates", "loopback", *flags])
        except UsageError as error:
            assert message in str(error), error
        else:
            raise AssertionError(f"{flags} are taken")


def every_target_is_about_known_cases(folder: Path) -> None:
    assert len(KNOWN) == len(CASES)
    named = {name for target in targets.TARGETS for name in (target.case, target.base)}
    assert named | {case.base for case in CASES} <= KNOWN.keys()
    for case in CASES:
        if case.kind == OURS:
            cli.parse([TrainConfig], ["--task", "rte", *case.flags], prog="", description="")


def the_table_has_ratios_of_a_round_and_other_losses_do_not_count(folder: Path) -> None:
    found = two_rounds()
    rows = {row["case"]: row for row in table(found, chosen("all_reduce,accelerate"), {})}
    assert list(rows) == [BASE, "all_reduce", "accelerate"]
    assert rows["all_reduce"]["step, s"] == "1.500 ± 0.707"  # first steps are left out
    assert rows["all_reduce"]["x DDP by hand"] == "0.50 ± 0.00"
    assert rows["accelerate"]["note"] == "other loss: does not count"
    assert rows["all_reduce"]["note"] == rows[BASE]["note"] == ""
    found.runs["ddp"][1] = Steps([0.7, float("nan")], [1.0] * 5)
    assert not found.same_loss(KNOWN["ddp"])


def targets_are_held_against_what_was_reached(folder: Path) -> None:
    found = two_rounds()
    verdicts = {row["what"]: row["verdict"] for row in targets.table([found], "small")}
    never_slower = "all_reduce is never slower than DDP, all else alike"
    assert verdicts == {never_slower: "met", "sparse rows on the small model": "missed"}
    rows = targets.table([found], "some/folder")
    assert [row["verdict"] for row in rows] == ["met", "met"]
    assert rows[1]["what"].startswith("RTE") and rows[1]["wanted"] == "<= 0.59 x"
    assert rows[1]["reached"] == "0.50 ± 0.00 x" and rows[1]["rate"] == "1gbit"
    found.runs["all_reduce"][0] = Steps([0.7, 0.6 + 2e-4], [1.0] * 5)
    rows = targets.table([found], "some/folder")
    assert {row["verdict"] for row in rows} == {"missed: other loss"}


def a_figure_has_a_bar_for_each_case_that_counts(folder: Path) -> None:
    path = folder / "bench.svg"
    figure.draw(two_rounds(), CASES, path)
    drawn = path.read_text()
    # Names and numbers are drawn as curves, each after a comment with its text.
    assert "<!-- DDP, by hand -->" in drawn
    assert "<!-- Muster, all_reduce, pads" in drawn
    assert re.search(r"\d ± \d+\.\d\d \(0\.50\)", drawn)
    assert "Trainer, with" not in drawn


def two_rounds() -> Results:
    """Return two rounds of four cases: the base, twice as fast, as fast, and with other losses."""
    found = Results("1gbit")
    for slow in (1.0, 2.0):
        for name, step_s, losses in (
            (BASE, 2.0, [0.7, 0.6]),
            ("all_reduce", 1.0, [0.7, 0.6 + 5e-5]),
            ("ddp", 2.0, [0.7, 0.6]),
            ("accelerate", 0.1, [0.7, 0.6 + 2e-4]),
        ):
            seconds = [99.0, 99.0, step_s * slow, step_s * slow, 50.0]
            found.runs[name].append(Steps(losses, seconds))
    return found


def a_case_that_fails_is_left_out_of_the_rest(folder: Path) -> None:
    def run(place: Place, case: Case, *_: object) -> Steps:
        if case.name == "ddp":
            raise MusterError("no such luck")
        return Steps([0.7] * 3, [1.0] * 3)

    args = bench.parser().parse_args(["--rounds", "2", "--steps", "3"])
    small = made.Made(None, None, 1, 1)
    with mock.patch.object(Place, "run", run), printed() as text:
        found = bench.measured("loopback", chosen("ddp, all_reduce"), small, args, folder)
    assert found.failed == {"ddp": "no such luck"}
    assert {name: len(own) for name, own in found.runs.items()} == {BASE: 2, "all_reduce": 2}
    assert "ddp: no such luck" in text.getvalue()


def start_up_is_held_against_torchrun_and_answers_against_seconds(folder: Path) -> None:
    found = {name: [4.0, 6.0] for name in startup.STARTS}
    found |= {"submit.py --help": [0.1, 0.2], "submit.py --dry-run": [0.3, 0.4]}
    found["submit.py, one node of four"] = [4.4, 7.2]
    rows = {row["what"].partition(":")[0]: row for row in startup.table(found)}
    reached = rows["submit.py, one node of four"]
    assert reached["wanted"] == "<= 1.10 x"
    assert reached["reached"] == "1.15 ± 0.07 x (5.80 ± 1.98 s)"
    assert reached["verdict"] == "missed, but within the spread"
    assert rows["a BERT by hand, --workers preload"]["verdict"] == "missed"
    assert rows["submit.py --help"]["verdict"] == "met"
    assert rows["submit.py --dry-run"]["verdict"].startswith("missed")


def a_command_of_this_tree_is_made_one_of_an_older_tree(folder: Path) -> None:
    tree = Tree("older", folder, "/env/bin/python", folder / "state")
    helper = str(CHECKOUT / "tests" / "cluster" / "sbatch.py")
    given = [sys.executable, helper, str(CHECKOUT / "slurm" / "multinode.sh"), "--env=A=1"]
    command = tree.command(given)
    at = command.index("/env/bin/python")
    assert command[:at] == ["env", "MUSTER_PYTHON=/env/bin/python", f"XDG_STATE_HOME={tree.state}"]
    assert command[at + 1 :] == [helper, str(folder / "slurm" / "multinode.sh"), "--env=A=1"]


def trees_are_measured_in_turns_and_compared_by_their_medians(folder: Path) -> None:
    trees = [Tree(name, folder, "", folder) for name in ("older", "this tree")]
    order: list[str] = []

    def measure(tree: Tree) -> float:
        order.append(tree.name)
        return float(len(order))

    found = in_turns(trees, 3, measure)
    assert order == ["older", "this tree"] * 3
    medians = {"older": "3 (1 3 5)", "this tree": "4 (2 4 6)", "ratio": "1.333"}
    assert compared(found, digits=0) == medians


def a_recovery_has_a_line_for_each_tree_and_their_ratio(folder: Path) -> None:
    case = recovery.Case("worker killed", "ssh", "trainer", "preload")
    lines = recovery.rows(case, {"older": [8.0, 10.0], "this tree": [3.0, 6.0]})
    begin = "| worker killed, ssh, trainer, preload |"
    assert lines[0].startswith(f"{begin} older | 9.00 | 8.0, 10.0 |")
    assert lines[1].startswith(f"{begin} this tree | 4.50 | 3.0, 6.0 |")
    assert lines[2] == f"{begin} ratio | 0.500 | | |"


def start_up_is_measured_over_the_number_of_workers(folder: Path) -> None:
    (row,) = startup.over_ranks([2], rounds=1)
    assert (row["nodes"], row["workers"]) == ("1", "2")
    assert all(re.fullmatch(r"\d+\.\d ± 0\.0 s", row[way]) for way in ("torchrun", "muster run"))


def a_peer_has_the_losses_of_ours_or_of_its_base(folder: Path) -> None:
    """Workers that do not sync are detected."""
    ready = made.ready("tiny", None, folder, seed=42)
    words = ["--nodes", "2", "--batch-size", "8", "--steps", str(STEPS), "--lr", "0.01"]
    args = bench.parser().parse_args(words)
    found: dict[str, list[float]] = {}

    def losses(name: str) -> Sequence[float]:
        if name not in found:
            with machines(LOOPBACK, nodes=2, threads=1) as here:
                steps = here.run(KNOWN[name], ready, args, folder)
            assert min(steps.step_s) > 0
            found[name] = steps.losses
        return found[name]

    with mock.patch.object(sys, "executable", interpreter()):
        for case in CASES:
            if case.kind != OURS and not case.limit:
                ours = losses(GPT if case.base == GPT else "all_reduce_padded")
                apart = np.abs(np.subtract(losses(case.name), ours)).max()
                assert apart < CLOSE, f"{case.name}: {apart} apart"
        runs = {name: [Steps(losses(name), [1.0] * STEPS)] for name in (BASE, "no_sync")}
    assert not Results(LOOPBACK, runs).same_loss(KNOWN["no_sync"])


@contextmanager
def printed() -> Iterator[StringIO]:
    text = StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        yield text


CHECKS: Sequence[Callable[[Path], None]] = (
    wrong_flags_are_refused_before_anything_runs,
    every_target_is_about_known_cases,
    the_table_has_ratios_of_a_round_and_other_losses_do_not_count,
    targets_are_held_against_what_was_reached,
    a_figure_has_a_bar_for_each_case_that_counts,
    a_case_that_fails_is_left_out_of_the_rest,
    start_up_is_held_against_torchrun_and_answers_against_seconds,
    a_command_of_this_tree_is_made_one_of_an_older_tree,
    trees_are_measured_in_turns_and_compared_by_their_medians,
    a_recovery_has_a_line_for_each_tree_and_their_ratio,
    start_up_is_measured_over_the_number_of_workers,
    a_peer_has_the_losses_of_ours_or_of_its_base,
)


if __name__ == "__main__":
    main()
