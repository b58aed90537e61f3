"""Write HDF5 shards for BERT's pre-training from text, in the form HetSeq and NVIDIA's BERT read.

python -m train.command_lines.write_shards wiki_hdf5 --data-dir wiki_text --tokenizer vocab.txt

Each training shard holds the samples of one epoch of a run on the text itself with the same seed.
So a run reads the samples of epoch 1 from train_0.hdf5, of epoch 2 from train_1.hdf5, and so on.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from configs import cli
from configs.help_page import Parser
from configs.settings.train import TrainConfig
from muster.errors import UsageError

DEFAULTS = TrainConfig()


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(
        prog="python -m train.command_lines.write_shards",
        usage="%(prog)s OUTPUT --data-dir DIR\n       --tokenizer FILE [flags]",
        description="Write HDF5 shards for --task bert from text. Files in --data-dir with valid, "
        "dev or test in their names become evaluation shards.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("output", type=Path, help="folder for the shards")
    add("--data-dir", type=Path, required=True, help="folder with .txt, .tokens or .raw files")
    add("--tokenizer", required=True, help="vocab.txt, or a model's name or folder")
    add("--model", help="configuration or model that will use the shards (default: BERT-base)")
    add("--max-seq-length", type=int, default=128, help="tokens per sample (default: 128)")
    add(
        "--mask-probability",
        type=float,
        default=0.15,
        help="share of tokens to predict (default: 0.15)",
    )
    add("--whole-word", action="store_true", help="mask whole words instead of single tokens")
    add("--epochs", type=int, default=5, help="training shards, each with new masks (default: 5)")
    add(
        "--seed",
        type=int,
        default=DEFAULTS.seed,
        help=f"seed for the masks (default: {DEFAULTS.seed})",
    )
    add("--cache-dir", type=Path, help="folder in which to cache tokenised text")
    args = vars(parser.parse_args(sys.argv[1:] if argv is None else argv))
    output = args.pop("output")
    return _write(TrainConfig(task="bert", **args), output)


def _write(config: TrainConfig, output: Path) -> int:
    from train.tasks import bert  # here, since a wrong flag should be reported at once
    from train.tasks.pretraining import segment_pairs, shards

    task = bert.build(config)
    task.prepare()
    sets = task.sets()
    if isinstance(sets["train"], shards.Shards):
        raise UsageError(f"--data-dir {config.data_dir} already has HDF5 shards instead of text")
    files = {
        output / f"{name}_{epoch}.hdf5": (name, epoch)
        for name in sets
        for epoch in range(config.epochs if name == "train" else 1)
    }
    if existing := [str(path) for path in files if path.exists()]:
        raise UsageError(f"{', '.join(existing)}: file exists\ntip: choose another folder")
    output.mkdir(parents=True, exist_ok=True)
    width = config.max_seq_length
    guesses = segment_pairs.most_per_sample(config.mask_probability, width)
    for path, (name, epoch) in files.items():
        if name == "train":
            task.start_epoch(epoch)
        shards.write(path, sets[name], width, guesses)
        print(f"{path}: {len(sets[name])} samples")
    return 0


if __name__ == "__main__":
    cli.run(main)
