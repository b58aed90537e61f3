"""The user's model takes a task's labels as they are meant, or is refused."""

import json

import pytest
import torch

from tests.train.tasks.text.made import MODEL, WORDS, build, prepared, refusal, small

pytestmark = pytest.mark.xdist_group("transformers")  # imported once for all of them


def batch_and_model(made, task="rte", **settings):
    """All samples, and a model that does not drop any of its values."""
    built = prepared(made, task, **settings)
    return built, built.collate(list(built.build_datasets().train)), built.build_model().eval()


def inputs_of(batch):
    return {name: tensor for name, tensor in batch.items() if name != "labels"}


@pytest.mark.parametrize("name", ["rte", "stsb"])
def test_the_loss_is_the_models_own(made, name):
    task, batch, model = batch_and_model(made, name)
    loss = task.forward(model, batch).loss.item()
    assert loss == pytest.approx(model(**batch).loss.item(), abs=1e-6)


def saved(made, folder, labels):
    """A fine-tuned model's folder with labels of its own."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    config = AutoConfig.from_pretrained(made / "config.json")
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: at for at, label in enumerate(labels)}
    AutoModelForSequenceClassification.from_config(config).save_pretrained(made / folder)
    return str(made / folder)


def test_a_fine_tuned_models_own_order_of_labels_is_followed(made):
    folder = saved(made, "tuned", ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"])
    task, batch, model = batch_and_model(made, "mnli", model=folder)
    expected = model(**inputs_of(batch)).logits[:, [2, 1, 0]]  # as the Hub numbers its labels
    assert torch.equal(task.forward(model, batch).logits, expected)


def test_labels_without_meaning_are_taken_in_glues_order(made):
    folder = saved(made, "tuned", ["LABEL_0", "LABEL_1"])
    task, batch, model = batch_and_model(made, model=folder)
    assert model.config.label2id == {"entailment": 0, "not_entailment": 1}
    assert torch.equal(task.forward(model, batch).logits, model(**inputs_of(batch)).logits)


def test_a_model_with_other_labels_is_refused_unless_its_weights_are_not_used(made):
    folder = saved(made, "tuned", ["entailment", "neutral", "contradiction"])
    message = "has 3 labels (entailment, neutral, contradiction), but rte has 2"
    assert message in refusal(made, model=folder)
    task = prepared(made, model=folder, random_weights=True)
    assert task.build_model().num_labels == 2


def test_a_model_without_a_head_gets_a_new_one(made):
    from transformers import AutoConfig, AutoModel

    body = AutoModel.from_config(AutoConfig.from_pretrained(made / "config.json"))
    body.save_pretrained(made / "body")
    model = build(made, "mnli", model=str(made / "body")).build_model()
    weights = body.embeddings.word_embeddings.weight
    assert torch.equal(model.bert.embeddings.word_embeddings.weight, weights)
    assert model.classifier.weight.shape == (3, 16)
    assert model.dtype == torch.float32


def test_weights_of_another_model_are_refused(made):
    from safetensors.torch import save_file

    folder = made / "other"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MODEL))
    assert "other" in refusal(made, model=str(folder))  # no weights at all
    save_file({"layer.weight": torch.ones(2)}, folder / "model.safetensors", {"format": "pt"})
    message = "its weights are not those of a BertForSequenceClassification"
    assert message in refusal(made, model=str(folder))


def test_sizes_that_do_not_fit_the_model_are_refused(made):
    message = "--max-seq-length 33 is more than the 32 positions of "
    assert refusal(made, max_seq_length=33).startswith(message)
    small(made, [*WORDS, *(f"w{i}" for i in range(40))])
    assert "the tokenizer has 57 tokens, but --model" in refusal(made)


def test_inputs_reach_a_model_through_what_is_around_it(made):
    """PEFT names few inputs, and hands on the others; DistilBERT has no token types."""
    from peft import LoraConfig, get_peft_model
    from transformers import DistilBertConfig

    sizes = DistilBertConfig(vocab_size=40, dim=16, n_layers=1, n_heads=2, hidden_dim=16)
    sizes.save_pretrained(made / "distilled")
    for model, layer in (("config.json", "query"), ("distilled/config.json", "q_lin")):
        task, batch, plain = batch_and_model(made, model=str(made / model))
        expected = task.forward(plain, batch).logits
        adapted = get_peft_model(plain, LoraConfig(task_type="SEQ_CLS", target_modules=[layer]))
        assert torch.equal(task.forward(adapted.eval(), batch).logits, expected)
