"""The states of a program's objects in a checkpoint: what ranks share once, the rest by rank.

A state holds tensors, numbers, strings, and lists, tuples and dicts of them: what torch.load
accepts with weights_only. Anything else is refused, on every rank; the message has its path.

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
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from muster.errors import UsageError

from ..checkpoints.exchange import gather
from ..checkpoints.storage import Files, State
from ..distributed.agreement import of_each
from ..sync.ddp.data_parallel import hook_of, replicas_of
from ..sync.ddp.torch_ddp import bucket_order, restore_bucket_order
from ..sync.ranks import Ranks

NUMBERS = (bool, int, float, str, type(None))
LENGTH_BYTES = 8  # of a packed value, in front of it; zeros follow it
Sums = dict[str, list[list[Any]]]  # of each object's state its parts: [key, checksum]


class Stateful(Protocol):
    """A model, an optimizer, a schedule, a GradScaler, `muster.steps`, or an object of yours."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


class ObjectStates:
    """`HasState` of the checkpoints, for objects with a `state_dict`."""

    def __init__(self, objects: Mapping[str, Stateful], ranks: Ranks, *, writes: bool) -> None:
        self._objects, self._ranks, self._writes = objects, ranks, writes
        self._files: Files = {}  # copies, between `own_state` and `saved`
        self._by_rank: list[str] = []  # objects whose states differ

    def own_state(self) -> Mapping[str, Tensor]:
        """What the hooks of models remember, and the parts of states that differ by rank.

        Raises:
            UsageError: a state cannot be saved. If only another rank's cannot: PeerFailed.
        """
        states = dict[str, Any]()
        sums = of_each(self._ranks.world_size, lambda: self._take(states))
        own = {
            f"{name}/{at}/{key}": tensor
            for name, one in self._objects.items()
            for at, replica in enumerate(_replicas(one))
            if (hook := hook_of(replica)) is not None
            for key, tensor in hook.state().items()
        }
        packed = dict[str, bytes]()
        for name, state in states.items():
            rows = [[(key, checksum) for key, checksum in one[name]] for one in sums]
            if any(row != rows[0] for row in rows):
                common = set(rows[0]).intersection(*rows)
                same = {key for key, _ in common}
                packed[name] = _packed(state, (name,), same)
        self._by_rank = list(packed)
        if packed:
            sizes = gather(self._ranks, [len(one) for one in packed.values()])
            for (name, data), size in zip(packed.items(), map(max, *sizes), strict=True):
                padded = bytearray(data.ljust(size, b"\0"))
                own[f"{name}/state"] = torch.frombuffer(padded, dtype=torch.uint8)
        return own

    def _take(self, states: dict[str, Any]) -> Sums:
        """Fill `states`, and the files if this rank writes; return checksums."""
        self._files, sums = {}, {}
        for name, one in self._objects.items():
            states[name] = state = one.state_dict()
            copied = _copied(state, (name,), copy=self._writes)
            buffers = _buffers_of_rank_0(one)
            sums[name] = [
                [repr(key), 0 if key in buffers else _checksum(value)]
                for key, value in _parts(copied).items()
            ]
            if self._writes:
                self._files[name] = copied
        return sums

    def saved(self, *, keeps: bool) -> tuple[Files, State]:
        files, self._files = self._files, {}
        orders = {
            name: [bucket_order(replica) for replica in _replicas(one)]
            for name, one in self._objects.items()
        }
        return files, {"objects": list(self._objects), "by_rank": self._by_rank, "buckets": orders}

    def problems(self, state: State) -> list[str]:
        objects = state.get("objects")
        saved = set(map(str, objects)) if isinstance(objects, list) else set[str]()
        wanted = set(self._objects)
        if saved == wanted:
            return []
        return [f"it holds {', '.join(sorted(saved))}; here are {', '.join(sorted(wanted))}"]

    def load(self, files: Files, state: State, own: Mapping[str, Tensor]) -> None:
        same = state["world_size"] == self._ranks.world_size
        for name, one in self._objects.items():
            packed = own.get(f"{name}/state")
            state_dict = files[name] if packed is None else _unpacked(packed, files[name])
            # its tensors lie in a mapped file; a module copies them, another object may keep them
            if not _copies_all(one, state_dict):
                state_dict = _copied(state_dict, (name,), copy=True)
            one.load_state_dict(state_dict)
            del state_dict  # before the next one is copied
            orders = state.get("buckets", {}).get(name, ())
            for at, replica in enumerate(_replicas(one)):
                if same and at < len(orders):
                    restore_bucket_order(replica, orders[at])
                if (hook := hook_of(replica)) is not None:
                    prefix = f"{name}/{at}/"
                    starting = [key for key in own if key.startswith(prefix)]
                    hook.restore({key.removeprefix(prefix): own[key] for key in starting})


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
