"""The states of a program's objects in a checkpoint: what ranks share once, the rest by rank.

There are two kinds of objects. One has a `state_dict`, which holds tensors, numbers, strings, and
lists, tuples and dicts of them: what torch.load accepts with weights_only. Anything else is
refused, on every rank; the message has its path. The other kind is `Collected`: its tensors lie in
parts on all ranks, and no rank ever holds all of them.

Every rank takes its states, and the ranks compare checksums of their parts (the keys of a
state_dict). A part that differs, such as the position of a rank's own data loader, is stored for
each rank, and so is what the hook of a model from `muster.sync` remembers between steps. The order
of the parameters in DDP's buckets is stored, too: the order in which ranks add numbers up depends
on it, and a new DDP would begin with another one.
"""

import io
import json
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from muster.errors import UsageError

from ..distributed.agreement import of_each
from ..sync.ddp.data_parallel import hook_of, replicas_of
from ..sync.ddp.reducer import bucket_order
from ..sync.ddp.torch_ddp import restore_bucket_order
from ..sync.ranks import Ranks
from .exchange import gather, gather_own, own_of
from .saved_state import SavedState
from .storage import Files

NUMBERS = (bool, int, float, str, type(None))
LENGTH_BYTES = 8  # of a packed value, in front of it; zeros follow it
MOST_JSON = 2**20  # characters of an object's state in state.json; a larger one has a file
Sums = dict[str, list[list[Any]]]  # of each object's state its parts: [key, checksum]


class Stateful(Protocol):
    """A model, an optimizer, a schedule, a GradScaler, `muster.steps`, or an object of yours."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


@runtime_checkable
class Collected(Protocol):
    """An object that ranks hold in parts, such as a model that a sync mode has split.

    All ranks call its methods in the same order. Each may be collective.
    """

    def own_tensors(self) -> Mapping[str, Tensor]:
        """What only this rank remembers; the same names and shapes on every rank. Called first."""

    def collected(self) -> Iterator[tuple[str, Tensor]]:
        """Each tensor with its name, whole, the same on every rank.

        Every rank takes all of them, one after the other, since to take the next one may be a
        collective. Ranks that write a checkpoint keep copies; the others keep nothing.
        """

    def load_collected(self, tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
        """Continue from what the other methods returned; `own` is what fits these ranks.

        `tensors` lie in mapped files, which may go later. So copy what stays, one by one.
        """


class ObjectStates:
    """What a checkpoint saves and restores: named objects. All ranks call its methods alike.

    An object may have a method `resume_problems`: for a state of it (the tensors, if it is
    `Collected`), a line for each reason why it cannot continue from there.
    """

    def __init__(
        self, objects: Mapping[str, Stateful | Collected], ranks: Ranks, *, writes: bool
    ) -> None:
        """`writes`: whether this rank writes, and so keeps copies."""
        self._stateful = {
            name: one for name, one in objects.items() if not isinstance(one, Collected)
        }
        self._collected = {name: one for name, one in objects.items() if isinstance(one, Collected)}
        self._names, self._ranks, self._writes = list(objects), ranks, writes

    def saved(self, step: int) -> tuple[Files, SavedState]:
        """The content of each file, and the state: copies in CPU memory, as of now. Collective.

        On ranks that do not write there are no files.

        Raises:
            UsageError: a state cannot be saved. If only another rank's cannot: PeerFailed.
        """
        own = dict[str, Tensor]()
        for name, one in self._collected.items():
            own |= {f"{name}/{key}": tensor for key, tensor in one.own_tensors().items()}
        states = dict[str, Any]()
        copies = dict[str, Any]()
        sums = of_each(self._ranks.world_size, lambda: self._take(states, copies))
        for name, stateful in self._stateful.items():
            for at, replica in enumerate(_replicas(stateful)):
                if (hook := hook_of(replica)) is not None:
                    own |= {f"{name}/{at}/{key}": tensor for key, tensor in hook.state().items()}
        by_rank = self._parts_by_rank(states, sums)
        own |= {f"{name}/state": packed for name, packed in by_rank.items()}
        remembered = gather_own(self._ranks, own, keeps=self._writes)
        values = {name: copied for name, copied in copies.items() if _is_short_json(copied)}
        files = {name: copied for name, copied in copies.items() if name not in values}
        for name, one in self._collected.items():
            # every rank goes through all tensors
            tensors = {key: _copy(whole) for key, whole in one.collected() if self._writes}
            if self._writes:
                files[name] = tensors
        if remembered:
            files["sync"] = remembered
        orders = {
            name: [bucket_order(replica) for replica in _replicas(one)]
            for name, one in self._stateful.items()
        }
        saved = SavedState(
            step=step, world_size=self._ranks.world_size, objects=self._names, values=values,
            by_rank=list(by_rank), buckets={name: order for name, order in orders.items() if order},
        )  # fmt: skip
        return files, saved

    def _take(self, states: dict[str, Any], copies: dict[str, Any]) -> Sums:
        """Fill `states`, and `copies` if this rank writes; return checksums."""
        sums: Sums = {}
        for name, one in self._stateful.items():
            states[name] = state = one.state_dict()
            copied = _copied(state, (name,), copy=self._writes)
            buffers = _buffers_of_rank_0(one)
            sums[name] = [
                [repr(key), 0 if key in buffers else _checksum(value)]
                for key, value in _parts(copied).items()
            ]
            if self._writes:
                copies[name] = copied
        return sums

    def _parts_by_rank(self, states: Mapping[str, Any], sums: list[Sums]) -> dict[str, Tensor]:
        """Of objects whose states differ by rank: what differs, in as many bytes on every rank."""
        packed = dict[str, bytes]()
        for name, state in states.items():
            rows = [[(key, checksum) for key, checksum in of_rank[name]] for of_rank in sums]
            if any(row != rows[0] for row in rows):
                common = set(rows[0]).intersection(*rows)
                same = {key for key, _ in common}
                packed[name] = _packed(state, (name,), same)
        if not packed:
            return {}
        sizes = gather(self._ranks, [len(data) for data in packed.values()])
        return {
            name: torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)
            for (name, data), size in zip(packed.items(), map(max, *sizes), strict=True)
        }

    def problems(self, saved: SavedState, files: Files) -> Iterator[str]:
        """Every reason why these objects cannot continue from a checkpoint."""
        there = set(saved.objects)
        here = set(self._names)
        if there != here:
            yield (
                "this is a checkpoint of another program: it holds "
                f"{', '.join(sorted(there)) or 'nothing'}; here are {', '.join(sorted(here))}"
            )
            return  # its states of the same names have other forms
        for name, one in {**self._stateful, **self._collected}.items():
            judge = getattr(one, "resume_problems", None)
            if judge is not None:
                yield from judge(_state_of(name, saved, files))

    def load(self, files: Files, saved: SavedState, without: Collection[str] = ()) -> None:
        """Continue from a checkpoint, except for the objects `without`.

        What differs by rank is restored only if the number of ranks is the same.
        """
        is_same = saved.world_size == self._ranks.world_size
        own = own_of(files.get("sync", {}), self._ranks.rank if is_same else None)
        for name in self._names:
            if name in without:
                continue
            prefix = f"{name}/"
            remembered = {
                key.removeprefix(prefix): one for key, one in own.items() if key.startswith(prefix)
            }
            state = _state_of(name, saved, files)
            if name in self._collected:
                self._collected[name].load_collected(state, remembered)
            else:
                orders = saved.buckets.get(name, []) if is_same else []
                _load(name, self._stateful[name], state, remembered, orders)


def _state_of(name: str, saved: SavedState, files: Files) -> Any:
    return saved.values[name] if name in saved.values else files[name]


def _load(
    name: str, one: Stateful, common: Any, remembered: Mapping[str, Tensor], orders: list[Any]
) -> None:
    """Load one object's state: what is `common` to all ranks, and what this rank remembered."""
    packed = remembered.get("state")
    state = common if packed is None else _unpacked(packed, common)
    # its tensors lie in a mapped file; a module copies them, another object may keep them
    if not _copies_all(one, state):
        state = _copied(state, (name,), copy=True)
    one.load_state_dict(state)
    del state  # before the next one is copied
    for at, replica in enumerate(_replicas(one)):
        if at < len(orders):
            restore_bucket_order(replica, orders[at])
        if (hook := hook_of(replica)) is not None:
            prefix = f"{at}/"
            starting = [key for key in remembered if key.startswith(prefix)]
            hook.restore({key.removeprefix(prefix): remembered[key] for key in starting})


def _is_short_json(value: Any) -> bool:
    """Whether `value`, of `_copied`, comes back from JSON as it is, and is short."""
    return _is_json(value) and len(json.dumps(value)) <= MOST_JSON


def _is_json(value: Any) -> bool:
    if type(value) is dict:
        return all(type(key) is str and _is_json(inner) for key, inner in value.items())
    if type(value) is list:
        return all(map(_is_json, value))
    return type(value) in NUMBERS


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _copies_all(stateful: Stateful, state: Mapping[Any, Any]) -> bool:
    """Whether it is torch's code that copies all of `state`, tensor by tensor, into `stateful`."""
    is_torch = getattr(type(stateful), "load_state_dict", None) is nn.Module.load_state_dict
    return is_torch and not any(str(key).endswith("_extra_state") for key in state)


def _replicas(one: Stateful) -> list[DistributedDataParallel]:
    return replicas_of(one) if isinstance(one, nn.Module) else []


def _buffers_of_rank_0(one: Stateful) -> set[str]:
    """The keys of buffers that DDP makes those of rank 0 before the next forward pass."""
    modules = one.named_modules() if isinstance(one, nn.Module) else ()
    return {
        f"{prefix}.{name}".removeprefix(".")
        for prefix, module in modules
        if isinstance(module, DistributedDataParallel) and module.broadcast_buffers
        for name, _ in module.named_buffers()
    }


def _parts(state: Any) -> Mapping[Any, Any]:
    return state if isinstance(state, Mapping) else {"": state}


def _packed(state: Any, path: tuple[str, ...], same: set[str]) -> bytes:
    """All keys of `state`, and the values of those whose `repr` is not in `same`."""
    parts = _parts(state)
    own = {key: value for key, value in parts.items() if repr(key) not in same}
    keys = list(parts) if isinstance(state, Mapping) else None
    torch.save(_copied({"keys": keys, "own": own}, path, copy=False), packed := io.BytesIO())
    data = packed.getvalue()
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


def _unpacked(packed: Tensor, common: Any) -> Any:
    """The state that `_packed` was given, with the values that it left out from `common`."""
    data = packed.numpy().tobytes()
    end = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    found = torch.load(io.BytesIO(data[LENGTH_BYTES:end]), weights_only=True)
    own = found["own"]
    if found["keys"] is None:
        return own[""]
    return _like(common, [(key, own[key] if key in own else common[key]) for key in found["keys"]])


def _copied(value: Any, path: tuple[str, ...], *, copy: bool) -> Any:
    """`value` with its tensors on the CPU, copied even if they are there if `copy`.

    Raises:
        UsageError: a part is neither a dense tensor, a number, a string, a list, a tuple nor a
            dict.
    """
    if isinstance(value, Tensor):
        return _plain(value, path).to("cpu", copy=copy)
    if isinstance(value, NUMBERS):
        return json.loads(json.dumps(value))  # numpy's numbers become Python's
    if isinstance(value, list | tuple):
        found = [_copied(one, (*path, str(at)), copy=copy) for at, one in enumerate(value)]
        return found if isinstance(value, list) else tuple(found)
    if isinstance(value, Mapping):
        if other := [key for key in value if not isinstance(key, NUMBERS)]:
            raise _refused(path, f"a key that is a {type(other[0]).__name__}")
        return _like(
            value,
            [
                (_copied(key, path, copy=copy), _copied(one, (*path, str(key)), copy=copy))
                for key, one in value.items()
            ],
        )
    raise _refused(path, f"a {type(value).__name__}")


def _plain(tensor: Tensor, path: tuple[str, ...]) -> Tensor:
    """A dense tensor of no other class, detached: what torch.load gives back as it is."""
    if nn.parameter.is_lazy(tensor):
        raise _refused(path, "a parameter without a shape yet; run the model once before")
    found = tensor.detach()
    if type(found) is not Tensor:  # its memory may hold only a part of what it stands for
        part = ", of which each rank holds a part (FSDP)" if hasattr(found, "to_local") else ""
        raise _refused(path, f"a {type(found).__name__}{part}")
    if found.layout != torch.strided or found.is_quantized or found.is_nested or found.is_meta:
        raise _refused(path, f"a tensor of {found.dtype} ({found.layout}, {found.device})")
    return found.resolve_conj().resolve_neg()


def _like(value: Mapping[Any, Any], items: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """`items` as a dict; those of a module keep the versions of its parts, an attribute."""
    if not isinstance(value, OrderedDict):
        return dict(items)
    found = OrderedDict(items)
    if (versions := getattr(value, "_metadata", None)) is not None:
        found._metadata = _copied(versions, ("_metadata",), copy=False)  # type: ignore[attr-defined]
    return found


def _checksum(value: Any, before: int = 0) -> int:
    """Of what `_copied` returned: types, shapes and bits."""
    if isinstance(value, Tensor):
        before = zlib.crc32(f"{value.dtype} {tuple(value.shape)}".encode(), before)
        return zlib.crc32(value.contiguous().view(-1).view(torch.uint8).numpy().data, before)
    if isinstance(value, Mapping):
        value = [list(value), *value.values()]
    if isinstance(value, list | tuple):
        before = zlib.crc32(f"{type(value).__name__} {len(value)}".encode(), before)
        for one in value:
            before = _checksum(one, before)
        return before
    return zlib.crc32(repr(value).encode(errors="surrogatepass"), before)


def _refused(path: tuple[str, ...], what: str) -> UsageError:
    where = "".join([path[0], *(f"[{one}]" for one in path[1:])])
    return UsageError(
        f"muster.checkpoints: the state of {where} holds {what}; only dense tensors of plain "
        "types, numbers, texts, lists, tuples and dicts are saved"
    )
