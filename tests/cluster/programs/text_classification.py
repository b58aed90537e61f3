"""transformers' Trainer on a text classification task, with a model made here."""

from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

# this is a very good, or bad, film
TEXTS = [
    {"input_ids": [1, 2, 3, 4, 5, 6], "label": 1},
    {"input_ids": [1, 2, 3, 4, 7, 6], "label": 0},
]


def main():
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
    shape = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForSequenceClassification(BertConfig(vocab_size=8, num_hidden_layers=1, **shape))
    data = TEXTS * 40
    trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data)
    result = trainer.train()
    print(
        f"process {arguments.process_index} of {arguments.world_size}: "
        f"{result.global_step} steps, {trainer.accelerator.distributed_type}, "
        f"batch {trainer.args.train_batch_size * arguments.world_size}"
    )
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
