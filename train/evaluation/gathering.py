"""Columns of all ranks come together on rank 0: each rank's part is sent there once.

Everything goes through gloo and memory of the CPU, also where gradients go through NCCL. What
travels is numbers and JSON. A problem on one rank is raised on all of them, in the same words.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from muster.errors import UsageError

from ..distributed.patience import gloo_group, wait_for_all
from ..sync.ranks import Ranks
from .sample_columns import Packed, as_bytes, as_text, joined, pack, unpack

PIECE_BYTES = 64 * 2**20  # sent at a time


@dataclass(frozen=True)
class Exchange:
    """What the ranks of `ranks` send each other for a metric. Every method is a collective."""

    ranks: Ranks

    def all_texts(self, text: str) -> list[str]:
        """The text of every rank, on every rank."""
        if self.ranks.world_size == 1:
            return [text]
        own = as_bytes(text.encode())
        group = gloo_group()
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.ranks.world_size)]
        dist.all_gather(sizes, torch.tensor([len(own)]), group=group)
        width = max(1, *(int(size) for size in sizes))
        row = torch.zeros(width, dtype=torch.uint8)
        row[: len(own)] = own
        rows = [torch.empty_like(row) for _ in sizes]
        dist.all_gather(rows, row, group=group)
        self.ranks.ledger.control["all_gather"] += row.nbytes + sizes[0].nbytes
        return [as_text(one[: int(size)]) for one, size in zip(rows, sizes, strict=True)]

    def of_first(self, text: str) -> str:
        """The text of rank 0, on every rank, however long rank 0 takes to come."""
        if self.ranks.world_size == 1:
            return text
        wait_for_all(self.ranks.world_size)  # a metric may take longer than a collective may
        own, group = as_bytes(text.encode()), gloo_group()
        size = torch.tensor([len(own)])
        dist.broadcast(size, 0, group=group)
        if self.ranks.rank > 0:
            own = torch.empty(int(size), dtype=torch.uint8)
        if len(own):
            dist.broadcast(own, 0, group=group)
        self.ranks.ledger.control["broadcast"] += own.nbytes + size.nbytes
        return as_text(own)

    def columns(self, own: Mapping[str, Any]) -> dict[str, np.ndarray | list[Any]]:
        """The columns of all ranks, end to end in the order of ranks, on rank 0; {} elsewhere.

        Every rank gives the same names. A column that is None everywhere is left out.

        Raises:
            UsageError: on every rank: a part cannot be sent, or is not as long as another one.
        """
        packed, problem = dict[str, Packed](), ""
        for name, values in own.items():
            try:
                packed[name] = pack(values)
            except (TypeError, ValueError) as error:
                problem = f"{name}: {error}"
        given = [name for name, values in own.items() if values is not None]
        if problem:
            packed, given = {}, []
        facts = {name: one.facts for name, one in packed.items()}
        heads = self.all_texts(json.dumps({"problem": problem, "facts": facts, "given": given}))
        parts = [json.loads(head) for head in heads]
        names = [name for name in own if any(name in part["given"] for part in parts)]
        for rank, part in enumerate(parts):
            _check(rank, part, names)
        found = dict[str, np.ndarray | list[Any]]()
        for name in names:
            blocks = self._to_first(packed[name], [part["facts"][name] for part in parts])
            if blocks:
                found[name] = joined([unpack(block) for block in blocks])
        return found

    def _to_first(self, own: Packed, facts: list[list[Any]]) -> list[Packed]:
        """Every rank's part on rank 0, which receives them one rank after the other."""
        rank, group = self.ranks.rank, gloo_group() if self.ranks.world_size > 1 else None
        if rank > 0:
            if len(own.data):
                for piece in own.data.split(PIECE_BYTES):
                    dist.send(piece, 0, group=group)
                self.ranks.ledger.control["send"] += own.data.nbytes
            return []
        blocks = [own]
        for source, (rows, dtype, shape, is_list, nbytes) in enumerate(facts):
            if source == 0:
                continue
            data = torch.empty(nbytes, dtype=torch.uint8)
            for piece in data.split(PIECE_BYTES) if nbytes else ():
                dist.recv(piece, source, group=group)
            blocks.append(Packed(rows, dtype, tuple(shape), is_list, data))
        return blocks


def _check(rank: int, part: dict[str, Any], names: list[str]) -> None:
    """Refuse what a rank has told of its part.

    Raises:
        UsageError: it cannot be sent, or its columns are of different lengths.
    """
    if part["problem"]:
        raise UsageError(f"the metric's input on rank {rank}: {part['problem']}")
    rows = {name: part["facts"][name][0] for name in names}
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{count} {name}" for name, count in rows.items())
        raise UsageError(
            f"the metric's input on rank {rank} has {counts}; give one of each per sample"
        )
