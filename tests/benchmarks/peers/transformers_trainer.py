"""Fine-tune with transformers' Trainer, set up as in its GLUE example."""

import tempfile
import time
from typing import Any

import transformers
from torch.utils.data import Sampler, SequentialSampler

import muster
from tests.benchmarks.peers import common


class InOrder(transformers.Trainer):
    """Takes the samples in their given order, and keeps the loss of each step."""

    losses: list[float] = []

    def _get_train_sampler(self, *_: Any) -> Sampler[int]:
        return SequentialSampler(self.train_dataset)

    def compute_loss(self, *args: Any, **more: Any) -> Any:
        loss = super().compute_loss(*args, **more)
        self.losses.append(loss.item())
        return loss


class Clock(transformers.TrainerCallback):
    """Measures the time from the end of a step to the end of the next; stops after the last one."""

    def __init__(self, steps: int) -> None:
        self.seconds: list[float] = []
        self._steps = steps

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._begin = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self._begin)
        self._begin = now
        control.should_training_stop = state.global_step >= self._steps


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--muster", action="store_true", help="with one line changed")
    args = parser.parse_args()
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            output_dir=folder,
            use_cpu=args.device == "cpu",
            ddp_backend="gloo" if args.device == "cpu" else "nccl",
            learning_rate=args.lr,
            max_steps=args.schedule_steps,
            seed=args.seed,
            # otherwise it multiplies a classifier's loss by the number of workers
            average_tokens_across_devices=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        settings.per_device_train_batch_size = args.batch_size // settings.world_size
        clock = Clock(args.steps)
        trainer = InOrder(
            model=transformers.AutoModelForSequenceClassification.from_pretrained(args.model),
            args=settings,
            train_dataset=common.ordered_samples(args, tokenizer),
            data_collator=transformers.DataCollatorWithPadding(tokenizer),
            callbacks=[clock],
        )
        if args.muster:
            muster.sync_ddp(trainer)
        trainer.train()
    common.report_and_end(trainer.losses, clock.seconds)


if __name__ == "__main__":
    main()
