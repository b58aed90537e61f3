"""A user's model interprets a task's labels as they are meant, or is refused."""

import json
from pathlib import Path

import pytest
import torch

from tests.train.tasks.text.made import MODEL, WORDS, build, prepared, refusal, small


def batch_and_model(glue, task="rte", **settings):
    """Return a task, a batch of all its samples, and its model without dropout."""
    built = prepared(glue, task, **settings)
    return built, built.collate(list(built.build_datasets().train)), built.build_model().eval()


def inputs_of(batch):
    return {name: tensor for name, tensor in batch.items() if name != "labels"}


@pytest.mark.parametrize("name", ["rte", "stsb"])
def test_classifier_loss_equals_the_models_own(glue, name):
    task, batch, model = batch_and_model(glue, name)
    loss = task.forward(model, batch).loss.item()
    assert loss == pytest.approx(model(**batch).loss.item(), abs=1e-6)


def saved(glue, folder, labels, head="SequenceClassification"):
    """Save a model as if it had been fine-tuned for `labels`, and return its folder."""
    import transformers
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(glue / "config.json")
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: at for at, label in enumerate(labels)}
    kind = getattr(transformers, f"AutoModelFor{head}")
    kind.from_config(config).save_pretrained(glue / folder)
    return str(glue / folder)


def test_label_order_of_a_fine_tuned_model_is_followed(glue):
    folder = saved(glue, "tuned", ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"])
    task, batch, model = batch_and_model(glue, "mnli", model=folder)
    expected = model(**inputs_of(batch)).logits[:, [2, 1, 0]]  # as the Hub numbers its labels
    assert torch.equal(task.forward(model, batch).logits, expected)


def test_numbered_labels_are_taken_in_glues_order(glue):
    folder = saved(glue, "tuned", ["LABEL_0", "LABEL_1"])
    task, batch, model = batch_and_model(glue, model=folder)
    assert model.config.label2id == {"entailment": 0, "not_entailment": 1}
    assert torch.equal(task.forward(model, batch).logits, model(**inputs_of(batch)).logits)


def test_model_with_other_labels_is_refused_unless_weights_are_random(glue):
    folder = saved(glue, "tuned", ["entailment", "neutral", "contradiction"])
    message = "has 3 labels (entailment, neutral, contradiction), but rte has 2"
    assert message in refusal(glue, model=folder)
    task = prepared(glue, model=f"{folder}/config.json")
    assert task.build_model().num_labels == 2


def test_head_of_another_kind_is_refused(glue):
    """Even if it has the same number of labels, and its weights would fit."""
    folder = saved(glue, "tuned", ["O", "B-LOC"], "TokenClassification")
    message = "has 2 labels (O, B-LOC), for TokenClassification, not SequenceClassification"
    assert message in refusal(glue, model=folder)
    assert "but rte has 2" in refusal(glue, model=folder)


def test_weights_that_differ_from_their_configuration_are_named(glue):
    folder = saved(glue, "tuned", ["yes", "no", "perhaps"])
    settings = json.loads(Path(folder, "config.json").read_text())
    for changed, message in (
        ({"architectures": None}, "classifier.bias has shape (3,) in its weights, but (2,) in"),
        ({"architectures": None}, "--new-head"),
        ({"intermediate_size": 24}, "dense.bias has shape (32,) in its weights, but (24,) in"),
    ):
        Path(folder, "config.json").write_text(json.dumps({**settings, **changed}))
        assert message in refusal(glue, model=folder, new_head="intermediate_size" in changed)


@pytest.mark.parametrize("task", ["rte", "mnli"])
def test_new_head_is_drawn_by_seed_and_body_is_the_models(glue, task):
    """Even if the old head would fit."""
    from transformers import AutoModelForSequenceClassification

    folder = saved(glue, "tuned", ["entailment", "neutral", "contradiction"])
    old = AutoModelForSequenceClassification.from_pretrained(folder)
    built = prepared(glue, task, model=folder, new_head=True)
    models = []
    for _ in range(2):
        torch.manual_seed(7)
        models.append(built.build_model())
    first, second = (model.state_dict() for model in models)
    assert all(torch.equal(first[name], second[name]) for name in first)
    of_body = [name for name in first if name.startswith("bert.")]
    assert all(torch.equal(first[name], old.state_dict()[name]) for name in of_body)
    assert models[0].num_labels == built.labels.num_labels
    assert first["classifier.weight"].shape == (built.labels.num_labels, 16)
    assert not torch.equal(first["classifier.weight"][:2], old.classifier.weight[:2])
    assert first["classifier.weight"].std() > 0


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 133466304\n"


@pytest.mark.parametrize(
    ("file", "harm", "message"),
    [
        ("model.safetensors", lambda _: POINTER, "is a Git LFS pointer, not the file itself; run"),
        ("model.safetensors", lambda _: b"", "is empty"),
        ("model.safetensors", lambda _: b"<!DOCTYPE html><p>404", "is a web page, not the file"),
        ("model.safetensors", lambda data: data[:-9], "is damaged or cut off (Error while"),
        ("config.json", lambda _: POINTER, "is a Git LFS pointer"),
        ("pytorch_model.bin", lambda _: POINTER, "is a Git LFS pointer"),
    ],
)
def test_unusable_model_file_is_named_with_its_fault(glue, file, harm, message):
    folder = Path(saved(glue, "tuned", ["entailment", "not_entailment"]))
    data = (folder / "model.safetensors").read_bytes()
    if file == "pytorch_model.bin":
        (folder / "model.safetensors").unlink()
    (folder / file).write_bytes(harm(data))
    assert refusal(glue, model=str(folder)).startswith(f"--model {folder / file} {message}")


def test_lfs_pointer_that_is_not_read_is_ignored(glue):
    folder = saved(glue, "tuned", ["entailment", "not_entailment"])
    Path(folder, "pytorch_model.bin").write_bytes(POINTER)
    assert prepared(glue, model=folder).build_model().num_labels == 2


@pytest.mark.parametrize("of_model", [None, 1])
def test_gpt2_pads_with_its_end_of_text_token(glue, of_model):
    """Even if the model's configuration has another padding token, as Llama's does."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import GPT2Config, PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(["<|endoftext|>", "?", *WORDS[5:]])}
    plain = Tokenizer(WordLevel(words, unk_token="?"))
    plain.pre_tokenizer = Whitespace()
    folder = glue / "gpt2"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|endoftext|>")
    tokenizer.save_pretrained(folder)
    sizes = {"vocab_size": 40, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
    GPT2Config(**sizes, pad_token_id=of_model).save_pretrained(folder)
    task, batch, model = batch_and_model(
        glue, model=str(folder / "config.json"), tokenizer=str(folder)
    )
    together = task.forward(model, batch).logits
    alone = [task.collate([one]) for one in task.build_datasets().train]
    separate = torch.cat([task.forward(model, one).logits for one in alone])
    assert torch.allclose(together, separate, atol=1e-6)
    assert model.config.pad_token_id == task.tokens().pad_token_id == 0


def test_model_without_head_gets_a_new_one(glue):
    from transformers import AutoConfig, AutoModel

    body = AutoModel.from_config(AutoConfig.from_pretrained(glue / "config.json"))
    body.save_pretrained(glue / "body")
    model = build(glue, "mnli", model=str(glue / "body")).build_model()
    weights = body.embeddings.word_embeddings.weight
    assert torch.equal(model.bert.embeddings.word_embeddings.weight, weights)
    assert model.classifier.weight.shape == (3, 16)
    assert model.dtype == torch.float32


def test_weights_of_another_architecture_are_refused(glue):
    from safetensors.torch import save_file

    folder = glue / "other"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MODEL))
    assert "other" in refusal(glue, model=str(folder))  # no weights at all
    save_file({"layer.weight": torch.ones(2)}, folder / "model.safetensors", {"format": "pt"})
    message = "its weights do not belong to BertForSequenceClassification"
    assert message in refusal(glue, model=str(folder))


def test_too_long_samples_and_too_large_vocabulary_are_refused(glue):
    message = "--max-seq-length 33 is longer than the 32 positions of "
    assert refusal(glue, max_seq_length=33).startswith(message)
    small(glue, [*WORDS, *(f"w{i}" for i in range(40))])
    assert "the tokenizer has 57 tokens, but --model" in refusal(glue)


def test_inputs_reach_a_model_inside_peft(glue):
    """PEFT names few inputs and passes on the rest; DistilBERT has no token types."""
    from peft import LoraConfig, get_peft_model
    from transformers import DistilBertConfig

    sizes = DistilBertConfig(vocab_size=40, dim=16, n_layers=1, n_heads=2, hidden_dim=16)
    sizes.save_pretrained(glue / "distilled")
    for model, layer in (("config.json", "query"), ("distilled/config.json", "q_lin")):
        task, batch, plain = batch_and_model(glue, model=str(glue / model))
        expected = task.forward(plain, batch).logits
        adapted = get_peft_model(plain, LoraConfig(task_type="SEQ_CLS", target_modules=[layer]))
        assert torch.equal(task.forward(adapted.eval(), batch).logits, expected)
