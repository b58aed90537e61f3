"""Rank 2 hangs in one way after another, each time until the test lets it continue."""

import ctypes
import fcntl
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

HERE = Path(sys.argv[1])  # where the test and this program leave files for each other
CLONE_VM, CLONE_VFORK = 0x100, 0x4000


def released(way):
    return (HERE / f"release-{way}").exists()


def once_released(way, act):
    """Have another thread call `act` once `way` is released."""

    def wait():
        while not released(way):
            time.sleep(0.2)
        act()

    threading.Thread(target=wait, daemon=True).start()


def asleep():
    while not released("asleep"):
        time.sleep(0.2)


class Slow(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        while not released("loader"):
            time.sleep(0.2)
        return index


def loader():
    for _ in DataLoader(Slow(), num_workers=1):
        pass


def lock():
    held = threading.Lock()
    held.acquire()
    once_released("lock", held.release)
    held.acquire()  # waits


def spinning():
    over = []
    once_released("spinning", lambda: over.append(True))
    while not over:
        pass


def held():
    """C code holds the interpreter while it waits for a lock that the test has."""
    with (HERE / "lock").open("w") as file:
        ctypes.PyDLL(None).flock(file.fileno(), fcntl.LOCK_EX)


def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


def vfork():
    """A child of vfork(2) runs sleep(3); its parent is in uninterruptible sleep."""
    libc = ctypes.CDLL(None)
    stack = ctypes.create_string_buffer(1 << 20)
    top = ctypes.c_void_p((ctypes.addressof(stack) + (1 << 20)) & ~15)
    sleep = ctypes.cast(libc.sleep, ctypes.c_void_p)
    libc.clone(sleep, top, CLONE_VM | CLONE_VFORK | signal.SIGCHLD, ctypes.c_void_p(600))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pair = dist.new_group([2, 3], group_desc="pair")
    for _ in range(3):
        dist.all_reduce(torch.ones(1000))
    for way in (asleep, loader, lock, spinning, held, stopped, vfork):
        if rank == 2:
            (HERE / f"at-{way.__name__}").write_text(str(os.getpid()))
            way()
        dist.all_reduce(torch.ones(1000))
    (HERE / f"at-order-{rank}").touch()
    groups = [pair, None] if rank == 3 else [None, pair]
    for group in groups[: 2 if rank in (2, 3) else 1]:
        dist.all_reduce(torch.ones(10), group=group)


main()
