"""transformers' Trainer on a text classification, with a model and a tokenizer made here."""

import argparse

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "a", "very", "is", "this"]


class FailsAt(TrainerCallback):
    def __init__(self, rank):
        self.rank = rank

    def on_step_end(self, args, state, control, **kwargs):
        if args.process_index == self.rank:
            raise ValueError("sample 17 is empty")


def make_tokenizer():
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]"
    )


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
    tokenizer = make_tokenizer()
    texts = ["this is a very good film", "this film is bad"] * 40
    data = Dataset.from_dict({"text": texts, "label": [1, 0] * 40})
    data = data.map(lambda batch: tokenizer(batch["text"]), batched=True)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(WORDS),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
        )
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=data,
        eval_dataset=data,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
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
