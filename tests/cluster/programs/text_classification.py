"""transformers' Trainer on a text classification, with a model made here."""

import argparse

from datasets import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

WORDS = "[PAD] this is a very good film bad".split()


class FailsAt(TrainerCallback):
    def __init__(self, rank):
        self.rank = rank

    def on_step_end(self, args, state, control, **kwargs):
        if args.process_index == self.rank:
            raise ValueError("sample 17 is empty")


def encode(row):
    """Each word's number, and the words that there are."""
    words = [WORDS.index(word) for word in row["text"].split()]
    padding = [0] * (6 - len(words))
    return {"input_ids": words + padding, "attention_mask": [1] * len(words) + padding}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fail", type=int)
    fail = parser.parse_args().fail
    arguments = TrainingArguments(
        output_dir="out",
        max_steps=3,
        per_device_train_batch_size=2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    set_seed(arguments.seed)
    texts = ["this is a very good film", "this film is bad"] * 40
    data = Dataset.from_dict({"text": texts, "label": [1, 0] * 40}).map(encode)
    shape = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForSequenceClassification(
        BertConfig(vocab_size=len(WORDS), num_hidden_layers=1, **shape)
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=data,
        eval_dataset=data,
        callbacks=[FailsAt(fail)],
    )
    result = trainer.train()
    print(
        f"process {arguments.process_index} of {arguments.world_size}: "
        f"{result.global_step} steps, {trainer.accelerator.distributed_type}, "
        f"batch {trainer.args.train_batch_size * arguments.world_size}"
    )
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
