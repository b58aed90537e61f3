"""The user's model takes a task's labels as they are meant, or is refused."""

import json

import pytest
import torch

from tests.train.tasks.text.made import MODEL, WORDS, build, refusal
from train.tasks.language import classifier

pytestmark = pytest.mark.xdist_group("transformers")  # imported once for all of them


def test_the_loss_is_the_models_own(made):
    for name in ("rte", "stsb"):
        task = build(made, name)
        task.prepare()
        model = task.build_model().eval()
        batch = task.collate(list(task.build_datasets().train))
        assert task.forward(model, batch).loss.item() == pytest.approx(
            model(**batch).loss.item(), abs=1e-6
        )


def saved(made, folder, labels, **settings):
    """A fine-tuned model's folder with labels of its own."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    config = AutoConfig.from_pretrained(made / "config.json")
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: at for at, label in enumerate(labels)}
    AutoModelForSequenceClassification.from_config(config).save_pretrained(made / folder)
    return str(made / folder)


def test_a_fine_tuned_models_own_order_of_labels_is_followed(made):
    from transformers import AutoModelForSequenceClassification

    folder = saved(made, "tuned", ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"])
    task = build(made, "mnli", model=folder)
    task.prepare()
    batch = task.collate(list(task.build_datasets().train))
    model = task.build_model().eval()
    plain = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    expected = plain(**inputs).logits[:, [2, 1, 0]]  # entailment, neutral, contradiction
    assert torch.allclose(task.forward(model, batch).logits, expected, atol=1e-6)


def test_labels_without_meaning_are_taken_in_glues_order(made):
    task = build(made, model=saved(made, "tuned", ["LABEL_0", "LABEL_1"]))
    task.prepare()
    model = task.build_model()
    assert model.config.label2id == {"entailment": 0, "not_entailment": 1}
    batch = task.collate(list(task.build_datasets().train))
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    assert torch.equal(task.forward(model.eval(), batch).logits, model(**inputs).logits)


def test_a_model_with_other_labels_is_refused_unless_its_weights_are_not_used(made):
    folder = saved(made, "tuned", ["entailment", "neutral", "contradiction"])
    assert "has 3 labels (entailment, neutral, contradiction), but rte has 2" in refusal(
        build(made, model=folder)
    )
    task = build(made, model=folder, random_weights=True)
    task.prepare()
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
    assert "other" in refusal(build(made, model=str(folder)))  # no weights at all
    save_file({"layer.weight": torch.ones(2)}, folder / "model.safetensors", {"format": "pt"})
    assert "its weights are not those of a BertForSequenceClassification" in refusal(
        build(made, model=str(folder))
    )


def test_sizes_that_do_not_fit_the_model_are_refused(made):
    assert refusal(build(made, max_seq_length=33)).startswith(
        "--max-seq-length 33 is more than the 32 positions of "
    )
    (made / "vocab.txt").write_text("\n".join([*WORDS, *(f"w{i}" for i in range(40))]))
    assert "the tokenizer has 57 tokens, but --model" in refusal(build(made))


def test_inputs_reach_a_model_through_what_is_around_it(made):
    """DDP and PEFT name few inputs, and hand on the others; DistilBERT would only lose them."""
    from peft import LoraConfig, get_peft_model
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    task = build(made, "rte")
    task.prepare()
    model = task.build_model()
    batch = task.collate(list(task.build_datasets().train))
    wanted = {"input_ids", "attention_mask", "token_type_ids"}
    assert set(batch) == {*wanted, "labels"}
    adapted = get_peft_model(model, LoraConfig(task_type="SEQ_CLS", target_modules=["query"]))
    distilled = DistilBertForSequenceClassification(
        DistilBertConfig(vocab_size=40, dim=16, n_layers=1, n_heads=2, hidden_dim=16)
    )
    assert set(classifier.inputs(model, batch)) == set(classifier.inputs(adapted, batch)) == wanted
    assert set(classifier.inputs(distilled, batch)) == {"input_ids", "attention_mask"}
    adapted_distilled = get_peft_model(
        distilled, LoraConfig(task_type="SEQ_CLS", target_modules=["q_lin"])
    )
    assert set(classifier.inputs(adapted_distilled, batch)) == {"input_ids", "attention_mask"}
    assert torch.equal(
        task.forward(adapted.eval(), batch).logits,
        model(**{name: batch[name] for name in wanted}).logits,
    )
