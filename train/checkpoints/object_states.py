"""The states of a program's objects in a checkpoint: shared states once, the others by rank.

There are two kinds of objects. The first kind has a `state_dict`. It consists of tensors, numbers,
strings, and lists, tuples and dicts of them: what torch.load accepts with weights_only. Anything
else is refused on every rank, and the message has its path. The second kind is `Collected`: its
tensors lie in parts on all ranks, and no rank ever holds all of them.

Objects that differ by rank, such as each rank's own data loader, are declared by their user. Their
states are stored for each rank, as are random generators and the tensors that the hook of a model
from `muster.sync` keeps between steps. For every other object, ranks compare checksums. If these
differ, its states are also stored for each rank, with a warning. The order of the parameters in
DDP's buckets is stored beside the hook's tensors: the order in which ranks add numbers depends on
it, and a new DDP would begin with another order.
"""

import io
import json
import re
import textwrap
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from muster.errors import UsageError

from ..distributed.agreement import gather_results
from ..model import rng
from ..sync.ddp.data_parallel import hook_of, replicas_of
from ..sync.ddp.reducer import bucket_order
from ..sync.ddp.torch_ddp import restore_bucket_order
from ..sync.ranks import Ranks
from .exchange import ALL, gather_by_rank, tensors_of_rank
from .storage import OBJECTS, SYNC, Files, SavedState
from .writer import warn

NUMBERS = (bool, int, float, str, type(None))
GENERATORS = "generators"  # the name of their states, beside those of objects
BUCKETS = "buckets"  # the name of their order, beside the tensors of a hook
MOST_NAMED = 5  # keys in a warning
MOST_TEXT = 500  # characters of torch's own error


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
        On another number of ranks, `own_tensors` has only the tensors that were equal on all ranks.
        """


class ObjectStates:
    """The named objects that a checkpoint saves and restores. All ranks make the same calls.

    An object may have a method `resume_problems`: given a saved state (the tensors, if it is
    `Collected`), it returns a line for each reason why the object cannot continue from there.
    """

    def __init__(
        self,
        objects: Mapping[str, Stateful | Collected],
        ranks: Ranks,
        *,
        writes: bool,
        by_rank: Mapping[str, Stateful] | None = None,
    ) -> None:
        """`writes`: whether this rank writes, and so keeps copies. `by_rank` are more objects."""
        self._declared = set(by_rank or ())
        every = {**objects, **(by_rank or {})}
        self._stateful = {
            name: item for name, item in every.items() if not isinstance(item, Collected)
        }
        self._collected = {
            name: item for name, item in every.items() if isinstance(item, Collected)
        }
        self._names = list(every)
        self._ranks = ranks
        self._writes = writes
        self._warned = set[str]()  # about which a warning has been printed

    def saved(self, step: int) -> tuple[Files, SavedState]:
        """The content of each file, and the state: copies in CPU memory, as of now. Collective.

        Only ranks that write get all of them. Each rank reads all its states once.

        Raises:
            UsageError: a state cannot be saved. If only another rank's cannot: PeerFailed.
        """
        local = dict[str, Tensor]()
        for name, instance in self._collected.items():
            local |= {f"{name}/{key}": tensor for key, tensor in instance.own_tensors().items()}
        states = dict[str, Any]()
        sums_of = gather_results(self._ranks.world_size, lambda: self._take(states))
        undeclared = [
            name for name, own in sums_of[0].items() if any(sums[name] != own for sums in sums_of)
        ]
        for name in undeclared:
            self._warn_once(name, [sums[name] for sums in sums_of])
        for name, stateful in self._stateful.items():
            for index, replica in enumerate(_replicas(stateful)):
                own_tensors = {BUCKETS: torch.tensor(bucket_order(replica), dtype=torch.long)}
                if (hook := hook_of(replica)) is not None:
                    own_tensors |= hook.state()
                local |= {f"{name}/{index}/{key}": tensor for key, tensor in own_tensors.items()}
        by_rank = [name for name in states if name in self._declared or name in undeclared]
        own = {name: _copied(states.pop(name), (name,), copy=False) for name in by_rank}
        own[GENERATORS] = rng.capture()
        local |= {f"{name}/state": _packed(state) for name, state in own.items()}
        sync = gather_by_rank(self._ranks, local, keeps=self._writes)
        for name, instance in self._collected.items():
            # every rank goes through all tensors
            states[name] = {
                key: whole.detach().to("cpu", copy=True).contiguous()
                for key, whole in instance.collected()
                if self._writes
            }
        saved = SavedState(
            step=step, world_size=self._ranks.world_size, by_rank=by_rank, undeclared=undeclared
        )
        return {OBJECTS: states, SYNC: sync}, saved

    def _take(self, states: dict[str, Any]) -> dict[str, dict[str, int]]:
        """Fill `states`, with copies if this rank writes; return checksums of undeclared ones.

        There is one checksum for each key of a state.
        """
        sums = dict[str, dict[str, int]]()
        for name, stateful in self._stateful.items():
            state = stateful.state_dict()
            copied = _copied(state, (name,), copy=self._writes)
            states[name] = copied if self._writes else state
            if name not in self._declared:
                compared = _compared(stateful, copied)
                sums[name] = {str(key): _checksum(value) for key, value in compared.items()}
        return sums

    def _warn_once(self, name: str, sums_of: list[dict[str, int]]) -> None:
        """Warn which keys of an undeclared object's state differ by rank, and what to declare."""
        if name in self._warned or self._ranks.rank != 0:
            return
        self._warned.add(name)
        keys = dict.fromkeys(key for sums in sums_of for key in sums)
        differing = [key for key in keys if key and len({sums.get(key) for sums in sums_of}) > 1]
        more = f" and {len(differing) - MOST_NAMED} more" * (len(differing) > MOST_NAMED)
        named = f": {', '.join(differing[:MOST_NAMED])}{more}" * bool(differing)
        hint = ""
        if _replicas(self._stateful[name]):
            hint = (
                ". DDP does not synchronise parameters that are frozen when it wraps the model; "
                "set requires_grad before wrapping it"
            )
        warn(
            f"muster.checkpoints: {name} differs between ranks{named}; each rank's state is "
            f"saved. A new run can resume from it only if you declare {name}: "
            f"{declaration(name)}{hint}"
        )

    def problems(self, saved: SavedState, files: Files, *, is_own: bool) -> Iterator[str]:
        """Every reason why these objects cannot continue from a checkpoint.

        `is_own`: an earlier attempt of this run has written it.
        """
        saved_names = {*files[OBJECTS], *saved.by_rank}
        own_names = set(self._names)
        if saved_names != own_names:
            yield (
                "this is a checkpoint of another program: it contains "
                f"{', '.join(sorted(saved_names)) or 'nothing'}, but this program has "
                f"{', '.join(sorted(own_names))}"
            )
            return  # its states of the same names have other forms
        for name in saved.undeclared if not is_own else ():
            if name not in self._declared:
                yield (
                    f"{name} differed between ranks in the checkpoint of step {saved.step}, but "
                    "was not declared"
                    f"\ntip: to continue with each rank's state, use {declaration(name)}"
                )
        for name, instance in {**self._stateful, **self._collected}.items():
            find_problems = getattr(instance, "resume_problems", None)
            if find_problems is not None:
                yield from find_problems(self._state_of(name, saved, files))

    def load(self, files: Files, saved: SavedState, without: Collection[str] = ()) -> None:
        """Continue from a checkpoint, except for the objects `without`.

        States that differ by rank are restored only if the number of ranks is the same; otherwise
        an object gets the state of rank 0.

        Raises:
            UsageError: torch cannot load a state into its object.
        """
        is_same = saved.world_size == self._ranks.world_size
        local = tensors_of_rank(files[SYNC], self._ranks.rank if is_same else None)
        for name in self._names:
            if name in without:
                continue
            own_tensors = _below(name, local)
            state = self._state_of(name, saved, files)
            if name in self._collected:
                self._collected[name].load_collected(state, own_tensors)
            else:
                _load(name, self._stateful[name], state, own_tensors)
        if is_same:
            rng.restore(_unpacked(local[f"{GENERATORS}/state"]))

    def _state_of(self, name: str, saved: SavedState, files: Files) -> Any:
        """The saved state of an object, for this rank."""
        if name not in saved.by_rank:
            return files[OBJECTS][name]
        owner = self._ranks.rank if saved.world_size == self._ranks.world_size else 0
        sync = files[SYNC]
        common = f"{ALL}/{name}/state"
        return _unpacked(sync[common if common in sync else f"{owner}/{name}/state"])


def declaration(name: str) -> str:
    """The line with which a user declares that an object differs by rank."""
    return f'muster.checkpoints(..., by_rank={{"{name}": {name}}})'


def _load(name: str, stateful: Stateful, state: Any, own_tensors: Mapping[str, Tensor]) -> None:
    """Load one object's state, and this rank's own tensors of it."""
    # its tensors lie in a mapped file, and the object may keep them
    state = _copied(state, (name,), copy=True)
    try:
        stateful.load_state_dict(state)
    except (RuntimeError, ValueError) as error:
        if not re.search(r"state[_ ]dict", str(error)):  # not torch's words for a misfit
            raise
        text = textwrap.shorten(str(error), MOST_TEXT)
        raise UsageError(f"{name} does not match the checkpoint: {text}") from error
    del state  # before the next one is copied
    for index, replica in enumerate(_replicas(stateful)):
        of_replica = _below(str(index), own_tensors)
        if BUCKETS in of_replica:
            restore_bucket_order(replica, of_replica.pop(BUCKETS).tolist())
        if (hook := hook_of(replica)) is not None:
            hook.restore(of_replica)


def _below(folder: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The `tensors` whose names begin with `folder` and a slash, by the rest of their names."""
    prefix = f"{folder}/"
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _replicas(stateful: Stateful) -> list[DistributedDataParallel]:
    return replicas_of(stateful) if isinstance(stateful, nn.Module) else []


def _buffers_of_rank_0(stateful: Stateful) -> set[str]:
    """The keys of buffers that DDP sets to rank 0's before the next forward pass."""
    modules = stateful.named_modules() if isinstance(stateful, nn.Module) else ()
    return {
        f"{prefix}.{name}".removeprefix(".")
        for prefix, module in modules
        if isinstance(module, DistributedDataParallel) and module.broadcast_buffers
        for name, _ in module.named_buffers()
    }


def _compared(stateful: Stateful, state: Any) -> Mapping[Any, Any]:
    """The parts of a state that should be the same on all ranks."""
    if not isinstance(state, Mapping):
        return {"": state}
    ignored = _buffers_of_rank_0(stateful)
    return {key: value for key, value in state.items() if key not in ignored}


def _packed(state: Any) -> Tensor:
    """The bytes of a plain state."""
    torch.save(state, packed := io.BytesIO())
    return torch.frombuffer(packed.getbuffer(), dtype=torch.uint8)


def _unpacked(packed: Tensor) -> Any:
    """The state that `_packed` was given."""
    return torch.load(io.BytesIO(packed.numpy().tobytes()), weights_only=True)


def _copied(value: Any, path: tuple[str, ...], *, copy: bool) -> Any:
    """`value` with its tensors on the CPU; with `copy`, they are copied even if they are there.

    NumPy numbers become Python numbers.

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
            raise _refused(path, f"a key of type {type(other[0]).__name__}")
        return _like(
            value,
            [
                (_copied(key, path, copy=copy), _copied(item, (*path, str(key)), copy=copy))
                for key, item in value.items()
            ],
        )
    raise _refused(path, f"a value of type {type(value).__name__}")


def _plain_number(value: Any) -> Any:
    """A NumPy number as a Python number; any other value as it is."""
    import numpy as np  # `muster.record` imports this file, and needs only torch

    return value.item() if isinstance(value, np.generic) and value.dtype.kind in "biuf" else value


def _plain(tensor: Tensor, path: tuple[str, ...]) -> Tensor:
    """A dense, detached tensor of no subclass: torch.load gives it back as it is."""
    if nn.parameter.is_lazy(tensor):
        raise _refused(
            path, "a parameter that has no shape yet\ntip: run the model once before saving"
        )
    plain = tensor.detach()
    if type(plain) is not Tensor:  # its memory may hold only a part of what it stands for
        part = ", which is split among the ranks (FSDP)" if hasattr(plain, "to_local") else ""
        raise _refused(path, f"a {type(plain).__name__}{part}")
    if plain.layout != torch.strided or plain.is_quantized or plain.is_nested or plain.is_meta:
        raise _refused(path, f"a tensor of {plain.dtype} ({plain.layout}, {plain.device})")
    return plain.resolve_conj().resolve_neg()


def _like(value: Mapping[Any, Any], items: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """`items` as a dict; a module's dict keeps an attribute, the versions of its parts."""
    if not isinstance(value, OrderedDict):
        return dict(items)
    copy = OrderedDict(items)
    if (versions := getattr(value, "_metadata", None)) is not None:
        copy._metadata = _copied(versions, ("_metadata",), copy=False)  # type: ignore[attr-defined]
    return copy


def _checksum(value: Any, before: int = 0) -> int:
    """The checksum of what `_copied` returned: types, shapes and bits."""
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
        "muster.checkpoints: only dense tensors of plain types, numbers, strings, lists, tuples "
        f"and dicts can be saved, but the state of {location} contains {what}"
    )
