"""Describe a host at the time of a run, to explain differences between runs."""

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch

from muster import git
from muster.checkout import CHECKOUT

PACKAGES = ("torch", "transformers", "accelerate", "datasets", "numpy", "safetensors")
# How git is asked for changes that a run can see: none of them are in docs/, where `make results`
# draws the figures of the previous study.
CHANGES = ("status", "--porcelain", "--untracked-files=no", "--", ":(top)", ":(top,exclude)docs")


def describe(host: str, device: torch.device) -> dict[str, Any]:
    """Commit, versions, processors and network interfaces of this host."""
    return {
        "host": host,
        "commit": git.ask_top(CHECKOUT, "rev-parse", "HEAD"),
        "dirty": bool(git.ask_top(CHECKOUT, *CHANGES)),
        "python": sys.version.split()[0],
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "device": str(device),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "threads_per_worker": torch.get_num_threads(),
        "gloo_interface": os.environ.get("GLOO_SOCKET_IFNAME"),
        "interfaces": _interfaces(),
    }


def link() -> dict[str, Any]:
    """The interface for this host's gradients, as the system describes it."""
    name = os.environ.get("GLOO_SOCKET_IFNAME") or os.environ.get("NCCL_SOCKET_IFNAME") or ""
    name = name.removeprefix("=")
    facts = _interfaces().get(name, {})
    return {"interface": name} | {key: facts.get(key) for key in ("mtu_bytes", "speed_mbit")}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())


def _interfaces() -> dict[str, Any]:
    states = psutil.net_if_stats()
    return {
        name: {
            "addresses": [entry.address for entry in addresses],
            "up": states[name].isup if name in states else None,
            "mtu_bytes": states[name].mtu if name in states else None,
            "speed_mbit": states[name].speed if name in states else None,
        }
        for name, addresses in psutil.net_if_addrs().items()
    }
