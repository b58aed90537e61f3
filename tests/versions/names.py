"""The names of torch that the library uses, by its syntax, and which versions lack them.

`torch_names.txt` has them all: `make versions` looks each one up in the versions that it is given.
`python -m tests.versions.names` prints those that the torch of this interpreter lacks.
"""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("torch_names.txt")
HEADER = "# Looked up by `make versions` in"
# What is loaded into users' processes; the rest of train/ is the toolkit's own trainer.
LIBRARY = ("muster", *(f"train/{folder}" for folder in (
    "batches", "checkpoints", "distributed", "evaluation", "model", "program", "records", "sync",
)))  # fmt: skip
DDP, FSDP = "torch.nn.parallel.DistributedDataParallel", "torch.distributed.fsdp.FSDPModule"
# Of objects, whose classes no syntax tells.
OF_FSDP = "set_custom_all_gather set_custom_reduce_scatter set_reduce_scatter_unused_params"
OF_FSDP += " set_requires_gradient_sync unshard reshard"
OF_NCCL = ("torch._C._distributed_c10d._dump_nccl_trace_json",)  # not in builds for CPUs
OF_BUCKET = "buffer gradients index is_last parameters"
METHODS = [
    *(f"{FSDP}.{name}" for name in OF_FSDP.split()),
    f"{DDP}.register_comm_hook",
    *(f"torch.distributed.GradBucket.{name}" for name in OF_BUCKET.split()),
    "torch.distributed.Work.get_future",
    "torch.Tensor.register_post_accumulate_grad_hook",
    "torch.Tensor.untyped_storage",
]  # fmt: skip
# Private names that nothing of ours defines, and whose they are; "": not torch's.
HOLDERS = {
    **dict.fromkeys(("_buffers", "_parameters", "_apply"), "torch.nn.Module"),
    **dict.fromkeys(("_get_ddp_logging_data", "_set_ddp_runtime_logging_sample_rate"), DDP),
    "_values": "torch.Tensor",
    "_rebuild_buckets": "torch.distributed.Reducer",
    **dict.fromkeys(("_comm_hooks", "_metadata"), ""),  # of a DDP, of a state_dict
    "_cdata": "torch.UntypedStorage",
    # of each DDP, not of its class; since torch 1.10
    **dict.fromkeys(("_divide_by_initial_world_size", "_join_config"), ""),
    **dict.fromkeys(("_current_frames", "_exit", "_getframe"), ""),  # sys, os
    "_replace": "",  # of named tuples
    **dict.fromkeys(("_models", "_ddp_comm_hook", "_ddp_kwargs"), ""),  # frameworks
    **dict.fromkeys(("_download_and_prepare", "_feature_names"), ""),  # evaluate
}


@cache
def used() -> set[str]:
    """The full names, and the arguments of what moves: `torch.distributed.gather(group_dst)`."""
    files = [file for folder in LIBRARY for file in sorted((REPOSITORY / folder).rglob("*.py"))]
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    own = {name for tree in trees for name in _defined(tree)}
    return {*METHODS, *(name for tree in trees for name in _used(tree, own))}


def _defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store())
            ):
                yield name


def _used(tree: ast.AST, own: set[str]) -> Iterator[str]:
    """What one file uses, in which all files define `own`."""
    names = dict(_bound(tree))
    yield from names.values()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=attr):
                if full := _full(node, names):
                    yield full
                elif re.match("_(?!_)", attr) and attr not in own and HOLDERS.get(attr, "?"):
                    yield f"{HOLDERS.get(attr, '?')}.{attr}"
            case ast.Call(func=ast.Name(id="getattr"), args=[of, ast.Constant(value=name), *_]):
                if full := _full(of, names):
                    yield f"{full}.{name}"
            case ast.Call(func=func, keywords=keywords):
                full = _full(func, names) or ""
                if full == DDP or re.fullmatch(r"torch\.distributed\.[a-z_.]+", full):
                    yield from (f"{full}({one.arg})" for one in keywords if one.arg)


def _bound(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The names of a file that stand for something of torch's, and for what."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found = [one for one in names if re.match(r"torch\b", one.name)]
                yield from ((one.asname or one.name, one.name) for one in found)
            case ast.ImportFrom(module=str(module), names=names, level=0) if re.match(
                r"torch\b", module
            ):
                yield from ((one.asname or one.name, f"{module}.{one.name}") for one in names)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as value):
                if full := _full(value, {}):  # of sys.modules, where torch may not be loaded
                    yield name, full


def _full(node: ast.AST, names: Mapping[str, str]) -> str | None:
    """What a dotted name stands for, also one looked up in `sys.modules`."""
    text = re.sub(r"^\w+\.modules\.get\('(torch[\w.]*)'\)", r"\1", ast.unparse(node))
    head, dot, rest = text.partition(".")
    holder = {**names, "torch": "torch"}.get(head)
    return f"{holder}{dot}{rest}" if holder and re.fullmatch(r"[\w.]*", rest) else None


def is_private(name: str) -> bool:
    return any(part.startswith("_") for part in name.split("."))


def lacks(name: str) -> bool:
    """Whether the torch of this interpreter has no such name or argument."""
    path, _, argument = name.rstrip(")").partition("(")
    holder: object = import_module("torch")
    places = path.split(".")
    for count, part in enumerate(places[1:], 2):
        try:
            following = getattr(holder, part)
        except AttributeError:
            if part in getattr(holder, "__annotations__", {}):
                return False  # of each object, not of the class
            try:
                following = import_module(".".join(places[:count]))
            except ImportError as error:  # such as of tensorboard, which is not installed
                return str(error.name).startswith("torch")
        holder = following
    return bool(argument) and argument not in inspect.signature(holder).parameters  # type: ignore[arg-type]


class Table(NamedTuple):
    versions: list[str]
    lacking: dict[str, list[str]]  # of each name, the versions without it

    @classmethod
    def read(cls) -> "Table":
        first, *lines = TABLE.read_text(encoding="utf-8").splitlines()
        rows = [line.split() for line in lines]
        return cls(first.removeprefix(HEADER).split(), {name: rest for name, *rest in rows})

    def write(self) -> None:
        rows = [" ".join([name, *rest]) for name, rest in sorted(self.lacking.items())]
        header = " ".join([HEADER, *self.versions])
        TABLE.write_text("\n".join([header, *rows, ""]), encoding="utf-8")

    def with_version(self, version: str, lacking: set[str]) -> "Table":
        """After a look-up of all names that are used, some of which that version lacks."""
        versions = sorted({*self.versions, version}, key=numbers)
        found = {}
        for name in used():
            without = {*self.lacking.get(name, ())} - {version}
            without |= {version} if name in lacking else set()
            found[name] = sorted(without, key=numbers)
        return Table(versions, found)


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split("."))


if __name__ == "__main__":
    print("\n".join(sorted(filter(lacks, used()))))
