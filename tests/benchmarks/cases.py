"""The cases that are compared, one per line: a new feature gets a case by adding a line."""

from dataclasses import dataclass

from muster.errors import UsageError

OURS = "ours"
BASE = "plain_ddp"  # the case whose time is the unit of the others
GPT = "nanogpt_ddp"  # the same for cases that train a GPT


@dataclass(frozen=True)
class Case:
    """One way to train: ours, given by a run's flags, or a peer, given by its file name and flags.

    Its time is shown as a multiple of the time of `base`, a case whose losses it must match. The
    time of a `limit` is shown, but its losses are not those of real training. A case with a
    `title`, its name in plain words, is in the figure.
    """

    name: str
    kind: str  # OURS, or a file of peers/
    flags: tuple[str, ...] = ()
    limit: bool = False
    title: str = ""
    base: str = BASE


PADDED = ("--pad", "max_length")
CASES = (
    # peers
    Case(BASE, "plain_ddp", title="DDP, by hand"),
    Case("loop_gather_scatter", "plain_ddp", ("--sync", "gather_scatter"),
         title="gather and scatter, by hand"),
    Case("loop_all_reduce", "plain_ddp", ("--sync", "all_reduce")),
    Case("accelerate_example", "accelerate_glue", title="Accelerate's example"),
    Case("transformers_trainer", "transformers_trainer", title="transformers' Trainer"),
    Case("plain_ddp_4mib", "plain_ddp", ("--sync", "ddp_4mib")),
    # peers, with one line changed
    Case("plain_ddp_with_muster", "plain_ddp", ("--sync", "muster"),
         title="by hand, with muster.sync(model)"),
    Case("accelerate_with_muster", "accelerate_glue", ("--muster",)),
    Case("trainer_with_muster", "transformers_trainer", ("--muster",),
         title="Trainer, with muster.sync_ddp(trainer)"),
    Case("no_sync", "plain_ddp", ("--sync", "none"), limit=True),
    # nanoGPT's loop: plain DDP, DDP with buckets as small as ours, and muster.sync
    Case(GPT, "nanogpt", base=GPT),
    Case("nanogpt_ddp_4mib", "nanogpt", ("--sync", "ddp_4mib"), base=GPT),
    Case("nanogpt", "nanogpt", ("--sync", "muster"), base=GPT),
    # ours
    Case("gather_scatter", OURS, ("--sync", "gather_scatter"),
         title="Muster, gather_scatter, pads less"),
    Case("all_reduce", OURS, ("--sync", "all_reduce"), title="Muster, all_reduce, pads less"),
    Case("ddp", OURS, ("--sync", "ddp")),
    Case("accelerate", OURS, ("--sync", "accelerate")),
    # ours, computing on as many tokens as the hand-written script
    Case("gather_scatter_padded", OURS, ("--sync", "gather_scatter", *PADDED)),
    Case("all_reduce_padded", OURS, ("--sync", "all_reduce", *PADDED)),
    Case("ddp_padded", OURS, ("--sync", "ddp", *PADDED)),
    # ours, leaving out one feature at a time
    Case("all_reduce_no_overlap", OURS, ("--sync", "all_reduce", "--no-overlap")),
    Case("all_reduce_dense", OURS, ("--sync", "all_reduce", "--no-sparse-rows")),
    Case("all_reduce_contiguous", OURS, ("--sync", "all_reduce", "--no-length-balance")),
    # ours, with a metrics tracker
    Case("all_reduce_tensorboard", OURS,
         ("--sync", "all_reduce", "--log-with", "tensorboard"), base="all_reduce"),
    Case("all_reduce_by_parameter", OURS, ("--sync", "all_reduce", "--bucket-mb", "0")),
)  # fmt: skip
KNOWN = {case.name: case for case in CASES}


def chosen(names: str | None) -> list[Case]:
    """Return the cases in `names` (separated by commas; None: all), and their bases.

    Raises:
        UsageError: there is no case with one of the names.
    """
    if names is None:
        return list(CASES)
    wanted = {name.strip() for name in names.split(",")}
    if unknown := wanted - KNOWN.keys():
        raise UsageError(f"--only {','.join(sorted(unknown))}: unknown; known: {', '.join(KNOWN)}")
    wanted |= {BASE, *(KNOWN[name].base for name in wanted)}
    return [case for case in CASES if case.name in wanted]
