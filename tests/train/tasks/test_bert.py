"""BERT's pre-training runs on text and on shards; each part of its loss is a separate mean."""

import json
from dataclasses import replace

import numpy
import pytest
import torch

from tests.train.tasks.pretraining.made import MODEL, VOCABULARY, one_token_shard, text
from tests.train.tasks.text.made import build, pads_agree, prepared, refusal, small, trained
from train.tasks import bert


@pytest.fixture
def corpus(tmp_path):
    """Make a folder with text, a vocabulary and a model's configuration."""
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "train.txt").write_text(text(30))
    (tmp_path / "bert" / "valid.txt").write_text(text(12))
    return small(tmp_path, VOCABULARY, MODEL)


def test_bert_learns_masks_and_pairs_from_text(corpus):
    history, _ = trained(corpus, "bert", batch_size=16, epochs=40)
    (scores,) = history.evaluations
    found = scores.metrics
    assert scores.samples == 24  # two chunks of each document
    assert found["mlm_accuracy"] > 0.8 and found["nsp_accuracy"] > 0.8
    assert found["perplexity"] == pytest.approx(numpy.exp(found["eval_mlm"]), rel=1e-5)
    assert found["eval_loss"] == pytest.approx(found["eval_mlm"] + found["eval_nsp"])
    assert history.steps[-1].loss < 0.5 * history.steps[0].loss


def test_masks_change_by_epoch_and_stay_in_evaluation(corpus):
    task = prepared(corpus, "bert")
    train, evaluation = task.build_datasets()
    retained, seen = list(evaluation[""]), []
    for epoch in (0, 1, 0):
        task.start_epoch(epoch)
        seen.append(list(train))
        assert list(evaluation[""]) == retained
    assert seen[0] != seen[1] and seen[0] == seen[2]
    other = prepared(corpus, "bert", seed=7).build_datasets()
    assert list(other.evaluation[""]) == retained and list(other.train) not in seen


def test_pretraining_loss_equals_that_of_transformers(corpus):
    from transformers import BertForPreTraining

    task = prepared(corpus, "bert")
    model = task.build_model().eval()
    batch = task.collate([task.build_datasets().train[at] for at in range(9)])
    loss, counts = task.forward(model, batch)
    plain = BertForPreTraining(model.config).eval()
    plain.load_state_dict(model.state_dict())
    labels = torch.full_like(batch["input_ids"], -100)
    labels.view(-1)[batch["masked_positions"]] = batch["masked_labels"]
    inputs = {key: batch[key] for key in ("input_ids", "token_type_ids", "attention_mask")}
    theirs = plain(**inputs, labels=labels, next_sentence_label=batch["labels"])
    assert loss.sum().item() == pytest.approx(theirs.loss.item(), abs=1e-5)
    right = (theirs.prediction_logits.argmax(-1) == labels).sum(1)
    assert counts[:, 1].tolist() == right.tolist()
    assert counts[:, 2].sum() == task.units(batch)[0] == len(batch["masked_labels"])
    assert task.units(batch)[1] == 9


def test_batch_without_masked_tokens_adds_zero_to_the_loss(corpus):
    task = prepared(corpus, "bert")
    samples = [task.build_datasets().train[at] for at in range(3)]
    batch = task.collate([sample._replace(positions=[], targets=[]) for sample in samples])
    model = task.build_model()
    loss = task.forward(model, batch).loss
    loss.sum().backward()
    assert loss[0] == 0 and task.units(batch).tolist() == [0, 3]
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_padding_does_not_change_pretraining_losses(corpus):
    assert pads_agree(corpus, "bert")


def test_saved_weights_have_the_names_of_transformers(corpus):
    from transformers import BertForPreTraining

    made_model = prepared(corpus, "bert").build_model()
    made_model.save_pretrained(corpus / "saved")
    again = prepared(corpus, "bert", model=str(corpus / "saved")).build_model()
    theirs = BertForPreTraining.from_pretrained(corpus / "saved")
    for name, tensor in made_model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
        assert torch.equal(tensor, theirs.state_dict()[name]), name


@pytest.fixture
def shards(corpus):
    folder = corpus / "shards"
    (folder / "test").mkdir(parents=True)
    for path in (folder / "a.hdf5", folder / "b.h5", folder / "test" / "0.h5"):
        one_token_shard(path, 20)
    return folder


@pytest.mark.parametrize("data_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_bert_learns_from_shards_without_a_tokenizer(corpus, shards, data_workers):
    recipe = {"batch_size": 16, "epochs": 20, "data_workers": data_workers}
    history, _ = trained(corpus, "bert", data_dir=shards, tokenizer=None, **recipe)
    (scores,) = history.evaluations
    assert [step.samples for step in list(history.steps)[:3]] == [16, 16, 8]
    assert scores.metrics["mlm_accuracy_test"] > 0.9
    assert not (corpus / "cache").exists()


def test_impossible_settings_of_pretraining_are_refused(corpus, shards):
    assert "needs --data-dir" in refusal(corpus, "bert", data_dir=None)
    assert "leaves nothing to learn" in refusal(corpus, "bert", mask_probability=0.0)
    assert "--max-seq-length 48 is longer than the 32" in refusal(corpus, "bert", max_seq_length=48)
    assert "use --max-seq-length 16" in refusal(corpus, "bert", data_dir=shards, max_seq_length=8)
    (corpus / "bert" / "valid.txt").write_text("w1 w1. W2 w2.\nw3 .")
    message = "has 1 document, "
    assert f"the valid set of --data-dir {corpus / 'bert'} {message}" in refusal(corpus, "bert")
    (corpus / "config.json").write_text(json.dumps({**MODEL, "model_type": "distilbert"}))
    assert "distilbert" in refusal(corpus, "bert")


def test_whole_word_masks_without_wordpiece_are_refused(corpus):
    prepared(corpus, "bert", whole_word=True)
    (corpus / "vocab.txt").write_text("\n".join(VOCABULARY[:-1]))
    assert "--whole-word needs a WordPiece" in refusal(corpus, "bert", whole_word=True)


def test_default_model_is_bert_base_with_its_vocabulary(corpus):
    task = bert.build(replace(build(corpus, "bert").config, model=None, tokenizer=None))
    assert task.tokenizer == "bert-base-uncased" and task.is_fresh
    shape = task._model_config
    assert (shape.hidden_size, shape.num_hidden_layers, shape.vocab_size) == (768, 12, 30522)
