"""What workers may use on nodes of any kind: open files, shared memory, their shares of cores."""

import os
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.nodes import resources
from launch.nodes.resources import (
    CPUS,
    THREADS,
    Cores,
    SharedMemory,
    parts_of,
    raise_file_limit,
    share_cores,
    too_little_shared,
    usable_cores,
)

CPUS_OF_JOB = "CPUS_OF_JOB"  # a scheduler's variable


def machine(folder, sockets=1, cores_of_socket=2, threads=1):
    """Write a kernel's files and return the CPUs: siblings are far apart, sockets alternate."""
    count = sockets * cores_of_socket
    for cpu in range(count * threads):
        core = cpu % count
        siblings = ",".join(str(core + count * thread) for thread in range(threads))
        topology = folder / "sys/devices/system/cpu" / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
        (topology / "physical_package_id").write_text(f"{core % sockets}\n")
    return set(range(count * threads))


@pytest.fixture
def see(tmp_path, monkeypatch):
    """Write files of the kernel, and return the cores that a process finds."""

    def look(cpus, files):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: cpus)
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return usable_cores(CPUS_OF_JOB, root=tmp_path)

    return look


def test_a_core_with_several_threads_counts_once(tmp_path, see):
    machine(tmp_path, cores_of_socket=4, threads=2)
    assert see({0, 1, 4, 5, 6}, {}) == Cores([[0, 4], [1, 5], [6]], None)
    nowhere = see({2, 9}, {})  # the kernel does not list the siblings of CPU 9
    assert nowhere.cores == [[2], [9]]


V2 = {"proc/self/cgroup": "0::/pod/job\n", "sys/fs/cgroup/pod/job/cpu.max": "max 100000\n"}
V1 = {
    "proc/self/cgroup": "3:memory:/x\n2:cpu,cpuacct:/job\n1:name=systemd:/\n",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",  # in a container the path is the host's
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
}


@pytest.mark.parametrize(("files", "limit"), [
    (V2, None),
    ({**V2, "sys/fs/cgroup/pod/cpu.max": "250000 100000\n"}, 2.5),
    ({**V2, "sys/fs/cgroup/pod/job/cpu.max": "50000 100000\n"}, 0.5),
    (V1, 1.5),
    ({**V1, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n"}, None),
    ({"proc/self/cgroup": "damaged\n"}, None),
])  # fmt: skip
def test_a_quota_of_any_cgroup_above_is_a_limit(see, files, limit):
    assert see({0, 1}, files) == Cores([[0], [1]], limit)


def test_a_scheduler_may_give_fewer_than_are_seen(see, monkeypatch):
    assert see(set(range(8)), V1).limit == 1.5
    monkeypatch.setenv(CPUS_OF_JOB, "1")
    assert see(set(range(8)), V1).limit == 1.0


def on(cpus, limit=None, threads=1):
    each = [list(range(core, cpus, cpus // threads)) for core in range(cpus // threads)]
    return Cores(each, limit)


@pytest.mark.parametrize(("found", "workers", "words"), [
    (on(8), 4, "2 for each worker"),
    (on(8), 3, "2 for each worker"),
    (on(8), 1, "8 for each worker"),
    (on(8, limit=2.5), 2, "1 for each worker"),
    (on(8, limit=0.5), 1, "1 for each worker"),
    (on(8, threads=2), 2, "2 for each worker"),
    (on(8, threads=2), 8, "1 for each worker"),  # each worker has one thread of a core
    (on(2), 4, "4 workers share 2 cores"),
    (on(8, limit=3.0), 4, "4 workers share 3 cores"),
])  # fmt: skip
def test_cores_are_divided_among_workers(found, workers, words):
    assert found.words(workers).startswith(words)
    assert found.threads(workers) * workers <= max(workers, len(found.cores))


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 2), st.integers(1, 20))
def test_bound_workers_share_all_cores_and_none_twice(sockets, each, threads, workers):
    found = [
        [socket * 100 + core + 50 * thread for thread in range(threads)]
        for core in range(each)
        for socket in range(sockets)
    ]
    parts = parts_of(found, workers, "cores")
    cpus = [cpu for part in parts for cpu in part]
    if not 1 < workers <= len(found) * threads:
        assert parts == []
    else:
        assert sorted(cpus) == sorted(cpu for core in found for cpu in core)
        sizes = {len(part) for part in parts}
        assert len(parts) == workers and max(sizes) - min(sizes) <= threads and min(sizes) > 0
    threads_of_worker = Cores(found, None).threads(workers, parts)
    assert threads_of_worker * workers <= max(workers, len(found))


def test_workers_beside_each_other_have_cores_of_one_socket(tmp_path):
    machine(tmp_path, sockets=2, cores_of_socket=2, threads=2)
    found = [[0, 4], [1, 5], [2, 6], [3, 7]]  # CPUs with odd numbers are on the second socket
    assert parts_of(found, 2, "cores", tmp_path) == [[0, 4, 2, 6], [1, 5, 3, 7]]
    assert parts_of(found, 4, "cores", tmp_path) == [[0, 4], [2, 6], [1, 5], [3, 7]]
    halves = [[0, 4, 2, 6]] * 2 + [[1, 5, 3, 7]]
    assert parts_of(found, 3, "socket", tmp_path) == halves
    assert parts_of(found, 1, "socket", tmp_path) == halves[:1]
    assert Cores(found, None).threads(1, halves[:1]) == 2  # not the four cores of both sockets
    assert Cores(found, None).threads(3, halves) == 1
    for none in (parts_of(found[::2], 2, "socket", tmp_path), parts_of(found, 2, "none")):
        assert none == []


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """Share the cores of a four-core machine; return the description and the variables."""
    monkeypatch.setattr(resources, "_kernel_text", lambda _: "0")  # all CPUs are on one socket

    def share(env=(), ranks=(2, 3), machine=(0, 1, 2, 3), bind=None, found=on(4), gpus=False):  # noqa: B008
        monkeypatch.setattr(resources, "usable_cores", lambda _: found)
        given = dict(env)
        more = {"has_gpus": gpus, "job_cpus": CPUS_OF_JOB}
        return share_cores(given, ranks, machine, bind, **more), given

    return share


def test_a_share_is_a_number_of_threads_and_workers_are_free(shared):
    words, env = shared(ranks=(0, 1), machine=(0, 1))
    assert (words, env) == ("2 for each worker", {THREADS: "2"})
    words, env = shared({CPUS: "7;8"})  # from the worker that started this run
    assert (words, env) == ("1 for each worker", {THREADS: "1"})


def test_omp_num_threads_of_the_user_stays(shared):
    words, env = shared({THREADS: "3\x1b[2J"})
    assert env[THREADS] == "3\x1b[2J"
    assert words == r"1 for each worker; OMP_NUM_THREADS is '3\x1b[2J'"
    assert shared({THREADS: "1"})[0] == "1 for each worker"


def test_workers_are_bound_by_their_places_on_the_machine(shared):
    words, env = shared(bind="cores")
    assert words == "1 for each worker, bound to them" and env[CPUS] == "2;3"
    words, env = shared(bind="cores", found=on(2))
    assert words == "4 workers share 2 cores; --bind cores has no effect"
    assert CPUS not in env
    assert shared(bind="none") == ("1 for each worker", {THREADS: "1"})


def test_in_a_job_they_are_bound_where_its_cores_are_known(shared, monkeypatch):
    """Elsewhere another run may use the same cores."""
    own = on(4, limit=4.0)
    assert CPUS not in shared(found=own)[1]
    monkeypatch.setenv(CPUS_OF_JOB, "4")
    assert shared(found=own)[0] == "1 for each worker, bound to them"
    assert CPUS not in shared(found=own, bind="none")[1]
    assert CPUS not in shared(found=on(8, limit=4.0))[1]  # other jobs may use four of these
    words, _ = shared(found=on(2, limit=2.0))
    assert words == f"4 workers share 2 cores; {resources.ASK_FOR_MORE}"
    assert CPUS not in shared(found=own, gpus=True)[1]


def test_resources_of_this_machine_agree():
    here = usable_cores()
    assert sorted(cpu for core in here.cores for cpu in core) == sorted(os.sched_getaffinity(0))
    assert here.limit is None or here.limit > 0


NONE = resource.RLIM_INFINITY
FILE_LIMITS = [
    ((400, 1000), (1000, 1000)),
    ((1024, NONE), (1 << 20, NONE)),
    ((1024, 1 << 30), (1 << 20, 1 << 30)),
    ((2 << 20, 1 << 30), None),  # never lowered
    ((NONE, NONE), None),
]


@pytest.mark.parametrize(("before", "after"), FILE_LIMITS)
def test_soft_file_limit_is_raised_to_the_hard_one(monkeypatch, before, after):
    set_to = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: before)
    monkeypatch.setattr(resource, "setrlimit", lambda *limit: set_to.append(limit))
    raise_file_limit()
    assert set_to == ([(resource.RLIMIT_NOFILE, after)] if after else [])


MB = 1 << 20


@pytest.mark.parametrize(("free", "workers", "line"), [
    (64 * MB, 1, "/dev/shm has 67 of 2147 MB free, and "),
    (300 * MB, 1, ""),
    (300 * MB, 2, "/dev/shm has 315 of 2147 MB free, and "),
])  # fmt: skip
def test_shared_memory_too_small_for_the_workers_is_named(free, workers, line):
    found = too_little_shared(SharedMemory(2048 * MB, free), workers)
    assert bool(found) == bool(line) and found.startswith(line)
    assert too_little_shared(None, workers) == ""  # as on macOS
