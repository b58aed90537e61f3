"""The states of a program's objects in a checkpoint: what ranks share once, the rest by rank.

There are two kinds of objects. The first kind has a `state_dict`. It holds tensors, numbers,
strings, and lists, tuples and dicts of them: what torch.load accepts with weights_only. Anything
else is refused on every rank, and the message has its path. The second kind is `Collected`: its
tensors lie in parts on all ranks, and no rank ever holds all of them.

Every rank takes its states, and the ranks compare checksums of their parts (the keys of a
state_dict). A part that differs, such as the position of a rank's own data loader, is stored for
each rank. The tensors that the hook of a model from `muster.sync` keeps between steps are stored
for each rank, too. So is the order of the parameters in DDP's buckets. The order in which ranks add
numbers depends on it, and a new DDP would begin with another order.
"""

import io
import json
import re
import textwrap
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from muster.errors import UsageError

from ..distributed.agreement import of_each
from ..sync.ddp.data_parallel import hook_of, replicas_of
from ..sync.ddp.reducer import bucket_order
from ..sync.ddp.torch_ddp import restore_bucket_order
from ..sync.ranks import Ranks
from .exchange import gather, gather_by_rank, tensors_of_rank
from .saved_state import SavedState
from .storage import Files
from .writer import warn

NUMBERS = (bool, int, float, str, type(None))
LENGTH_BYTES = 8  # of a packed value, in front of it; zeros follow it
MOST_JSON = 2**20  # characters of an object's state in state.json; a larger one has a file
Sums = dict[str, list[list[Any]]]  # of each object's state its parts: [key, checksum]
WRAPPERS = re.compile(
    r"(^|\.)(?:(?:_orig_mod|module)\.)+"
)  # what torch.compile and DDP add to names
MOST_NAMED = 5  # parameters in a warning
MOST_TEXT = 500  # characters of torch's own error
warn_once = lru_cache(maxsize=None)(warn)


class Stateful(Protocol):
    """A model, an optimizer, a schedule, a GradScaler, `muster.steps`, or an object of yours."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


@runtime_checkable
class Collected(Protocol):
    """An object that ranks hold in parts, such as a model that a sync mode has split.

    Every rank must call its methods, in the same order: each may be collective.
    """

    def own_tensors(self) -> Mapping[str, Tensor]:
        """The tensors of this rank alone: the same names and shapes on every rank. Called first."""

    def collected(self) -> Iterator[tuple[str, Tensor]]:
        """Each tensor in its full shape, with its name; the same on every rank.

        Every rank takes all of them, one after the other, since taking the next one may be a
        collective. Ranks that write a checkpoint keep copies. The others keep nothing.
        """

    def load_collected(
        self, tensors: Mapping[str, Tensor], own_tensors: Mapping[str, Tensor]
    ) -> None:
        """Continue from what the other methods returned.

        `tensors` lie in mapped files, which may be removed later: copy what you keep, one by one.
        On another number of ranks `own_tensors` are only those that were equal on all ranks.
        """


class ObjectStates:
    """The named objects that a checkpoint saves and restores. All ranks call its methods alike.

    An object may have a method `resume_problems`: for a state of it (the tensors, if it is
    `Collected`), a line for each reason why it cannot continue from there.
    """

    def __init__(
        self, objects: Mapping[str, Stateful | Collected], ranks: Ranks, *, writes: bool
    ) -> None:
        """`writes`: whether this rank writes, and so keeps copies."""
        self._stateful = {
            name: item for name, item in objects.items() if not isinstance(item, Collected)
        }
        self._collected = {
            name: item for name, item in objects.items() if isinstance(item, Collected)
        }
        self._names = list(objects)
        self._ranks = ranks
        self._writes = writes

    def saved(self, step: int) -> tuple[Files, SavedState]:
        """The content of each file, and the state: copies in CPU memory, as of now. Collective.

        Ranks that do not write return no files. Each rank reads all its states once.

        Raises:
            UsageError: a state cannot be saved. If only another rank's cannot: PeerFailed.
        """
        local = dict[str, Tensor]()
        for name, instance in self._collected.items():
            local |= {f"{name}/{key}": tensor for key, tensor in instance.own_tensors().items()}
        states = dict[str, Any]()
        copies = dict[str, Any]()
        sums = of_each(self._ranks.world_size, lambda: self._take(states, copies))
        self._warn_of_drift(sums)
        for name, stateful in self._stateful.items():
            for index, replica in enumerate(_replicas(stateful)):
                if (hook := hook_of(replica)) is not None:
                    local |= {
                        f"{name}/{index}/{key}": tensor for key, tensor in hook.state().items()
                    }
        by_rank = self._parts_by_rank(states, sums)
        local |= {f"{name}/state": packed for name, packed in by_rank.items()}
        copies_by_rank = gather_by_rank(self._ranks, local, keeps=self._writes)
        values = {name: copied for name, copied in copies.items() if _is_short_json(copied)}
        files = {name: copied for name, copied in copies.items() if name not in values}
        for name, instance in self._collected.items():
            # every rank goes through all tensors
            tensors = {key: _copy(whole) for key, whole in instance.collected() if self._writes}
            if self._writes:
                files[name] = tensors
        if copies_by_rank:
            files["sync"] = copies_by_rank
        orders = {
            name: [bucket_order(replica) for replica in _replicas(instance)]
            for name, instance in self._stateful.items()
        }
        saved = SavedState(
            step=step, world_size=self._ranks.world_size, objects=self._names, values=values,
            by_rank=list(by_rank), buckets={name: order for name, order in orders.items() if order},
        )  # fmt: skip
        return files, saved

    def _take(self, states: dict[str, Any], copies: dict[str, Any]) -> Sums:
        """Fill `states`, and `copies` if this rank writes; return checksums."""
        sums: Sums = {}
        for name, stateful in self._stateful.items():
            states[name] = state = stateful.state_dict()
            copied = _copied(state, (name,), copy=self._writes)
            buffers = _buffers_of_rank_0(stateful)
            sums[name] = [
                [repr(key), 0 if key in buffers else _checksum(value)]
                for key, value in _parts(copied).items()
            ]
            if self._writes:
                copies[name] = copied
        return sums

    def _warn_of_drift(self, sums: list[Sums]) -> None:
        """Name the parameters that should be the same in all replicas of a DDP, but differ."""
        modules = {
            name: item for name, item in self._stateful.items() if isinstance(item, nn.Module)
        }
        for name, module in modules.items():
            for replica in replicas_of(module):
                members = dist.get_process_group_ranks(replica.process_group)
                if members[0] != self._ranks.rank:  # one rank warns
                    continue
                rows = [{(key, checksum) for key, checksum in sums[rank][name]} for rank in members]
                differing = {key for key, _ in rows[0].union(*rows) - rows[0].intersection(*rows)}
                ignored = replica.parameters_to_ignore
                named = replica.module.named_parameters()
                own = {id(param) for key, param in named if key not in ignored}
                drifted = [
                    re.sub(r"\b(\d+)\b", r"[\1]", WRAPPERS.sub(r"\1", key)).replace(".[", "[")
                    for key, param in module.named_parameters()
                    if id(param) in own and repr(key) in differing
                ]
                if drifted:
                    more = f" and {len(drifted) - MOST_NAMED} more" * (len(drifted) > MOST_NAMED)
                    warn_once(
                        f"muster.checkpoints: {name} differs by rank: "
                        f"{', '.join(drifted[:MOST_NAMED])}{more}; each rank's values are saved. "
                        "DDP does not synchronise parameters that are frozen when it wraps the "
                        "model; set requires_grad before that"
                    )

    def _parts_by_rank(self, states: Mapping[str, Any], sums: list[Sums]) -> dict[str, Tensor]:
        """Packed parts of the states that differ by rank, in as many bytes on every rank."""
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
        saved_names = set(saved.objects)
        own_names = set(self._names)
        if saved_names != own_names:
            yield (
                "this is a checkpoint of another program: it holds "
                f"{', '.join(sorted(saved_names)) or 'nothing'}; here are "
                f"{', '.join(sorted(own_names))}"
            )
            return  # its states of the same names have other forms
        for name, instance in {**self._stateful, **self._collected}.items():
            find_problems = getattr(instance, "resume_problems", None)
            if find_problems is not None:
                yield from find_problems(_state_of(name, saved, files))

    def load(self, files: Files, saved: SavedState, without: Collection[str] = ()) -> None:
        """Continue from a checkpoint, except for the objects `without`.

        What differs by rank is restored only if the number of ranks is the same.

        Raises:
            UsageError: torch cannot load a state into its object.
        """
        is_same = saved.world_size == self._ranks.world_size
        local = tensors_of_rank(files.get("sync", {}), self._ranks.rank if is_same else None)
        for name in self._names:
            if name in without:
                continue
            prefix = f"{name}/"
            own_tensors = {
                key.removeprefix(prefix): tensor
                for key, tensor in local.items()
                if key.startswith(prefix)
            }
            state = _state_of(name, saved, files)
            if name in self._collected:
                self._collected[name].load_collected(state, own_tensors)
            else:
                orders = saved.buckets.get(name, []) if is_same else []
                _load(name, self._stateful[name], state, own_tensors, orders)


def _state_of(name: str, saved: SavedState, files: Files) -> Any:
    return saved.values[name] if name in saved.values else files[name]


def _load(
    name: str, stateful: Stateful, common: Any, own_tensors: Mapping[str, Tensor], orders: list[Any]
) -> None:
    """Load one object's state: what is `common` to all ranks, and this rank's own tensors."""
    packed = own_tensors.get("state")
    state = common if packed is None else _unpacked(packed, common)
    # its tensors lie in a mapped file; a module copies them, another object may keep them
    if not _copies_all(stateful, state):
        state = _copied(state, (name,), copy=True)
    try:
        stateful.load_state_dict(state)
    except (RuntimeError, ValueError) as error:
        if not re.search(r"state[_ ]dict", str(error)):  # not torch's words for a misfit
            raise
        text = textwrap.shorten(str(error), MOST_TEXT)
        raise UsageError(f"{name} does not fit: {text}{_wrapper_hint(stateful, state)}") from error
    del state  # before the next one is copied
    for index, replica in enumerate(_replicas(stateful)):
        if index < len(orders):
            restore_bucket_order(replica, orders[index])
        if (hook := hook_of(replica)) is not None:
            prefix = f"{index}/"
            starting = [key for key in own_tensors if key.startswith(prefix)]
            hook.restore({key.removeprefix(prefix): own_tensors[key] for key in starting})


def _wrapper_hint(stateful: Stateful, state: Mapping[Any, Any]) -> str:
    """What to do if names differ by what torch.compile and DDP add to them alone; else ""."""
    saved, own = ([*map(str, keys)] for keys in (state, stateful.state_dict()))
    plain_names = [{WRAPPERS.sub(r"\1", key) for key in keys} for keys in (saved, own)]
    if set(saved) == set(own) or plain_names[0] != plain_names[1]:
        return ""
    return (
        f"; the saved {saved[0]} is {own[0]} here: torch.compile adds _orig_mod. to names, and DDP "
        "adds module.; give the model in the form in which it was saved"
    )


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


def _replicas(stateful: Stateful) -> list[DistributedDataParallel]:
    return replicas_of(stateful) if isinstance(stateful, nn.Module) else []


def _buffers_of_rank_0(stateful: Stateful) -> set[str]:
    """The keys of buffers that DDP makes those of rank 0 before the next forward pass."""
    modules = stateful.named_modules() if isinstance(stateful, nn.Module) else ()
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
    differing = {key: value for key, value in parts.items() if repr(key) not in same}
    keys = list(parts) if isinstance(state, Mapping) else None
    torch.save(_copied({"keys": keys, "own": differing}, path, copy=False), packed := io.BytesIO())
    data = packed.getvalue()
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


def _unpacked(packed: Tensor, common: Any) -> Any:
    """The state that `_packed` was given, with the values that it left out from `common`."""
    data = packed.numpy().tobytes()
    end = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    content = torch.load(io.BytesIO(data[LENGTH_BYTES:end]), weights_only=True)
    differing = content["own"]
    if content["keys"] is None:
        return differing[""]
    return _like(
        common,
        [(key, differing[key] if key in differing else common[key]) for key in content["keys"]],
    )


def _copied(value: Any, path: tuple[str, ...], *, copy: bool) -> Any:
    """`value` with its tensors on the CPU, copied even if they are there if `copy`.

    numpy's numbers become Python's.

    Raises:
        UsageError: a part is neither a dense tensor, a number, a string, a list, a tuple nor a
            dict.
    """
    if isinstance(value, Tensor):
        return _plain(value, path).to("cpu", copy=copy)
    value = _plain_number(value)
    if isinstance(value, NUMBERS):
        return json.loads(json.dumps(value))
    if isinstance(value, list | tuple):
        copies = [_copied(item, (*path, str(index)), copy=copy) for index, item in enumerate(value)]
        return copies if isinstance(value, list) else tuple(copies)
    if isinstance(value, Mapping):
        if other := [key for key in value if not isinstance(_plain_number(key), NUMBERS)]:
            raise _refused(path, f"a key that is a {type(other[0]).__name__}")
        return _like(
            value,
            [
                (_copied(key, path, copy=copy), _copied(item, (*path, str(key)), copy=copy))
                for key, item in value.items()
            ],
        )
    raise _refused(path, f"a {type(value).__name__}")


def _plain_number(value: Any) -> Any:
    """A number of numpy as one of Python; anything else as it is."""
    import numpy as np  # `muster.record` imports this file, and needs torch alone

    return value.item() if isinstance(value, np.generic) and value.dtype.kind in "biuf" else value


def _plain(tensor: Tensor, path: tuple[str, ...]) -> Tensor:
    """A dense tensor of no other class, detached: what torch.load gives back as it is."""
    if nn.parameter.is_lazy(tensor):
        raise _refused(path, "a parameter without a shape yet; run the model once before")
    plain = tensor.detach()
    if type(plain) is not Tensor:  # its memory may hold only a part of what it stands for
        part = ", of which each rank holds a part (FSDP)" if hasattr(plain, "to_local") else ""
        raise _refused(path, f"a {type(plain).__name__}{part}")
    if plain.layout != torch.strided or plain.is_quantized or plain.is_nested or plain.is_meta:
        raise _refused(path, f"a tensor of {plain.dtype} ({plain.layout}, {plain.device})")
    return plain.resolve_conj().resolve_neg()


def _like(value: Mapping[Any, Any], items: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """`items` as a dict; those of a module keep the versions of its parts, an attribute."""
    if not isinstance(value, OrderedDict):
        return dict(items)
    copy = OrderedDict(items)
    if (versions := getattr(value, "_metadata", None)) is not None:
        copy._metadata = _copied(versions, ("_metadata",), copy=False)  # type: ignore[attr-defined]
    return copy


def _checksum(value: Any, before: int = 0) -> int:
    """Of what `_copied` returned: types, shapes and bits."""
    if isinstance(value, Tensor):
        before = zlib.crc32(f"{value.dtype} {tuple(value.shape)}".encode(), before)
        return zlib.crc32(value.contiguous().view(-1).view(torch.uint8).numpy().data, before)
    if isinstance(value, Mapping):
        value = [list(value), *value.values()]
    if isinstance(value, list | tuple):
        before = zlib.crc32(f"{type(value).__name__} {len(value)}".encode(), before)
        for item in value:
            before = _checksum(item, before)
        return before
    return zlib.crc32(repr(value).encode(errors="surrogatepass"), before)


def _refused(path: tuple[str, ...], what: str) -> UsageError:
    location = "".join([path[0], *(f"[{key}]" for key in path[1:])])
    return UsageError(
        f"muster.checkpoints: the state of {location} holds {what}; only dense tensors of plain "
        "types, numbers, texts, lists, tuples and dicts are saved"
    )
