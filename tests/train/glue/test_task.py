"""All nine tasks, from files in GLUE's real form to a loss and a metric; misfits are refused."""

import json
from dataclasses import replace

import pytest
import torch

from configs import plugins
from configs.errors import UsageError
from configs.schema import TrainConfig
from train.glue.spec import HUB_SET

pytestmark = pytest.mark.xdist_group("transformers")  # imported once for all of them

WORDS = '[PAD] [UNK] [CLS] [SEP] [MASK] a cat sat . the dog ran did it ? " ##s'.split()
MODEL = {
    "model_type": "bert",
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
MNLI = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
    "sentence1_parse\tsentence2_parse\tsentence1\tsentence2\t{labels}\tgold_label\n"
)
DEV_LABELS = "\t".join(f"label{number}" for number in range(1, 6))
PARSES = "{i}\t1\t1n\tfiction\t( a )\t( b )\t(A)\t(B)\t"
# One header and row per task, as in the files that GLUE gives out; {i} and {label} vary.
FORMS = {
    "cola": ("", "gj04\t{label}\t*\tThe cat{s} sat .\n", ["0", "1"]),
    "sst2": ("sentence\tlabel\n", "the cat{s} sat \t{label}\n", ["0", "1"]),
    "mrpc": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n",
        "{label}\t70{i}\t80{i}\tThe cat{s} sat .\tA dog ran .\n",
        ["0", "1"],
    ),
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n",
        "{i}\tmain\tMSRvid\t2012\t000{i}\tnone\tnone\tThe cat{s} sat .\tA dog ran .\t{label}\n",
        ["0.000", "3.250", "5.000"],
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n",
        "{i}\t1\t2\tDid the cat{s} ?\tDid it ?\t{label}\n",
        ["0", "1"],
    ),
    "mnli": (
        MNLI.format(labels="label1"),
        PARSES + "The cat{s} sat .\tA dog ran .\t{label}\t{label}\n",
        ["neutral", "entailment", "contradiction"],
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel\n",
        "{i}\tDid the cat{s} ?\tThe cat ran .\t{label}\n",
        ["not_entailment", "entailment"],
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel\n",
        '{i}\tThe " cat{s} sat .\tA dog ran .\t{label}\n',
        ["not_entailment", "entailment"],
    ),
    "wnli": (
        "index\tsentence1\tsentence2\tlabel\n",
        "{i}\tThe cat{s} sat .\tIt ran .\t{label}\n",
        ["1", "0"],
    ),
}


def rows(form, count):
    _, row, labels = form
    return "".join(
        row.format(i=i, label=labels[i % len(labels)], s=" sat" * (i % 4)) for i in range(count)
    )


@pytest.fixture
def made(tmp_path):
    """A folder of GLUE files per task, a vocabulary and a model's configuration."""
    for task, form in FORMS.items():
        folder = tmp_path / task
        folder.mkdir()
        (folder / "train.tsv").write_text(form[0] + rows(form, 7), encoding="utf-8")
        if task == "mnli":
            dev_row = form[1].replace("{label}\t{label}", "\t".join(["{label}"] * 6))
            text = MNLI.format(labels=DEV_LABELS) + rows((None, dev_row, form[2]), 5)
            (folder / "dev_matched.tsv").write_text(text)
            (folder / "dev_mismatched.tsv").write_text(text)
        else:
            (folder / "dev.tsv").write_text(form[0] + rows(form, 5), encoding="utf-8")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    return tmp_path


def build(made, task="rte", **settings):
    config = {
        "task": task,
        "data_dir": made / task,
        "model": str(made / "config.json"),
        "tokenizer": str(made / "vocab.txt"),
        "max_seq_length": 24,
        "cache_dir": made / "cache",
    } | settings
    return plugins.load("train.tasks", task)(TrainConfig(**config))


def refusal(task):
    with pytest.raises(UsageError) as error:
        task.prepare()
        task.build_model()
    assert "\n" not in str(error.value)
    return str(error.value)


METRICS = {
    "cola": {"matthews_correlation"},
    "mrpc": {"accuracy", "f1"},
    "qqp": {"accuracy", "f1"},
    "stsb": {"pearson", "spearmanr"},
}


@pytest.mark.parametrize("name", FORMS)
def test_every_task_trains_and_is_scored(made, name):
    task = build(made, name)
    assert not task.is_prepared()
    task.prepare()
    assert task.is_prepared()
    train, evaluation = task.build_datasets()
    assert len(train) == 7
    assert list(evaluation) == (["", "mm"] if name == "mnli" else [""])
    assert {len(samples) for samples in evaluation.values()} == {5}
    model = task.build_model().eval()
    batch = task.collate([train[at] for at in range(7)])
    loss, logits = task.forward(model, batch)
    assert logits.shape == (7, {"mnli": 3, "stsb": 1}.get(name, 2))
    loss.backward()
    metric = task.metric(evaluation[""])
    batch = task.collate([evaluation[""][at] for at in range(5)])
    with torch.no_grad():
        metric.update(task.forward(model, batch).logits, batch["labels"], torch.arange(5))
    assert metric.compute().keys() == METRICS.get(name, {"accuracy"})


def test_labels_are_numbered_as_on_the_hub(made):
    numbers = {}
    for name in FORMS:
        task = build(made, name)
        task.prepare()
        numbers[name] = task.collate(list(task.build_datasets().train))["labels"].tolist()[:3]
    assert numbers["rte"] == numbers["qnli"] == [1, 0, 1]
    assert numbers["mnli"] == [1, 0, 2]
    assert numbers["wnli"] == [1, 0, 1]
    assert numbers["mrpc"] == numbers["cola"] == numbers["sst2"] == numbers["qqp"] == [0, 1, 0]
    assert numbers["stsb"] == [0, 3.25, 5]


def test_tokens_are_those_of_the_sentences(made):
    task = build(made)
    task.prepare()
    batch = task.collate([task.build_datasets().train[1]])
    text = " ".join(WORDS[token] for token in batch["input_ids"][0])
    assert text == '[CLS] the " cat sat sat . [SEP] a dog ran . [SEP]'
    assert batch["token_type_ids"][0].tolist() == [0] * 8 + [1] * 5


def test_long_samples_are_cut(made):
    task = build(made, max_seq_length=6)
    task.prepare()
    assert {len(sample.tokens["input_ids"]) for sample in task.build_datasets().train} == {6}


def test_padding_leaves_loss_and_logits_as_they_are(made):
    found = []
    for pad in ("longest", "max_length"):
        task = build(made, pad=pad)
        task.prepare()
        torch.manual_seed(0)
        model = task.build_model().double().eval()
        batch = task.collate(list(task.build_datasets().train))
        found.append((batch["input_ids"].shape[1], task.forward(model, batch)))
    (short, one), (long, other) = found
    assert (short, long) == (15, 24)
    assert torch.allclose(one.loss, other.loss, atol=1e-12)
    assert torch.allclose(one.logits, other.logits, atol=1e-12)


@pytest.mark.parametrize("multiple", [1, 4])
def test_lengths_are_the_widths_of_samples_alone(made, multiple):
    task = build(made)
    task.spec = replace(task.spec, pad_multiple=multiple)
    task.prepare()
    for samples in (task.build_datasets().train, task.build_datasets().evaluation[""]):
        widths = [task.collate([one])["input_ids"].shape[1] for one in samples]
        assert task.lengths(samples).tolist() == widths
        assert task.collate(list(samples))["input_ids"].shape[1] == max(widths)
    assert len(set(widths)) > 1


def test_there_are_no_lengths_where_all_are_filled_up(made):
    task = build(made, pad="max_length")
    task.prepare()
    assert task.lengths(task.build_datasets().train) is None


def test_the_loss_is_the_models_own(made):
    for name in ("rte", "stsb"):
        task = build(made, name)
        task.prepare()
        model = task.build_model().eval()
        batch = task.collate(list(task.build_datasets().train))
        assert task.forward(model, batch).loss.item() == pytest.approx(
            model(**batch).loss.item(), abs=1e-6
        )


def test_the_same_seed_gives_the_same_weights(made):
    def weights(seed):
        torch.manual_seed(seed)
        return torch.cat([tensor.flatten() for tensor in build(made).build_model().parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_the_cache_is_used_again_until_anything_differs(made):
    task = build(made)
    task.prepare()
    (folder,) = (made / "cache").iterdir()
    before = (folder / "train.safetensors").stat().st_mtime_ns
    build(made).prepare()
    assert (folder / "train.safetensors").stat().st_mtime_ns == before
    build(made, max_seq_length=20).prepare()
    (made / "vocab.txt").write_text("\n".join([*WORDS, "more"]))
    build(made).prepare()
    path = made / "rte" / "dev.tsv"
    path.write_text(path.read_text().replace("dog", "cat"))
    assert not build(made).is_prepared()
    build(made).prepare()
    assert len(list((made / "cache").iterdir())) == 4


def test_a_damaged_cache_is_made_again(made):
    build(made).prepare()
    (folder,) = (made / "cache").iterdir()
    path = folder / "train.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert not build(made).is_prepared()
    build(made).prepare()
    assert path.read_bytes() == whole


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


@pytest.mark.parametrize("lower_case", ["auto", "yes"])
def test_a_vocabulary_without_capitals_lower_cases(made, lower_case):
    task = build(made, lower_case=lower_case)
    task.prepare()
    first = task.build_datasets().train[0].tokens["input_ids"]
    assert WORDS[first[1]] == "the"


def test_a_tokenizer_that_does_not_know_the_words_is_refused(made):
    (made / "vocab.txt").write_text("\n".join([*WORDS[:5], "xyz", "."]))
    said = refusal(build(made))
    assert "of the words are [UNK] to the tokenizer of" in said
    assert not (made / "cache").exists()
    (made / "vocab.txt").write_text("\n".join([*WORDS[:5], "xyz", "The", ".", "A", "a", "the"]))
    assert "[UNK]" in refusal(build(made))


def test_case_is_kept_where_the_vocabulary_has_capitals(made):
    (made / "vocab.txt").write_text("\n".join([*WORDS, "The", "A"]))
    for lower_case, word in (("auto", "The"), ("no", "The"), ("yes", "the")):
        task = build(made, lower_case=lower_case)
        task.prepare()
        first = task.build_datasets().train[0].tokens["input_ids"]
        assert [*WORDS, "The", "A"][first[1]] == word


def test_tokenizers_that_are_none_are_refused(made):
    empty = made / "empty"
    empty.mkdir()
    assert "has no tokenizer files" in refusal(build(made, tokenizer=str(empty)))
    (empty / "config.json").write_text(json.dumps(MODEL))  # which transformers 5 takes for one
    assert "has no tokenizer files" in refusal(build(made, tokenizer=None, model=str(empty)))
    assert "give a Hub name, a folder, or a vocab.txt" in refusal(
        build(made, tokenizer=str(made / "config.json"))
    )
    (made / "vocab.txt").write_text("the\ncat\n")
    assert "not a BERT vocabulary, it has no [PAD], [UNK]" in refusal(build(made))


def test_a_folder_with_a_bare_vocabulary_is_a_tokenizer(made):
    folder = made / "bare"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join([*WORDS, "The", "A"]))
    task = build(made, tokenizer=str(folder))
    task.prepare()
    assert task.build_datasets().train[0].tokens["input_ids"][1] == len(WORDS)  # "The"


def test_sizes_that_do_not_fit_the_model_are_refused(made):
    assert refusal(build(made, max_seq_length=33)).startswith(
        "--max-seq-length 33 is more than the 32 positions of "
    )
    (made / "vocab.txt").write_text("\n".join([*WORDS, *(f"w{i}" for i in range(40))]))
    assert "the tokenizer has 57 tokens, but --model" in refusal(build(made))


def test_what_is_not_there_is_named_in_one_line(made):
    assert refusal(build(made, model=str(made / "no"))).endswith("no: no such file or folder")
    assert refusal(build(made, tokenizer=str(made / "no.txt"))).endswith("no such file or folder")
    (made / "broken.json").write_text("{")
    assert "broken.json" in refusal(build(made, model=str(made / "broken.json")))


def test_without_the_hub_one_line_says_what_to_do(made):
    for settings in ({"model": "bert-base-cased"}, {"tokenizer": "bert-base-cased"}):
        said = refusal(build(made, **settings))
        assert "bert-base-cased: not on this disk, and the Hub cannot be reached; give" in said
    task = build(made, data_dir=None)
    with pytest.raises(UsageError, match="give its files with --data-dir, or run once where"):
        task.prepare()


@pytest.mark.parametrize("name", FORMS)
def test_a_set_of_the_hub_is_read_by_its_own_columns(made, name, monkeypatch):
    import datasets

    columns = {
        "cola": ["sentence"],
        "sst2": ["sentence"],
        "qqp": ["question1", "question2"],
        "mnli": ["premise", "hypothesis"],
        "qnli": ["question", "sentence"],
    }.get(name, ["sentence1", "sentence2"])
    splits = []

    def load_dataset(path, config, split):
        assert (path, config) == (HUB_SET, name)
        splits.append(split)
        rows = {column: ["the cat", "a dog ran"] for column in columns}
        return datasets.Dataset.from_dict({**rows, "label": [1, 0], "idx": [0, 1]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    task = build(made, name, data_dir=None)
    task.prepare()
    assert len(task.build_datasets().train) == 2
    dev = ["validation_matched", "validation_mismatched"] if name == "mnli" else ["validation"]
    assert splits == ["train", *dev]


def test_quickstart_needs_nothing_and_takes_what_is_given(tmp_path, made):
    build_it = plugins.load("train.tasks", "quickstart")
    task = build_it(TrainConfig(cache_dir=tmp_path / "cache"))
    assert not task.is_prepared()
    task.prepare()
    assert build_it(TrainConfig(cache_dir=tmp_path / "cache")).is_prepared()
    train, evaluation = task.build_datasets()
    assert (len(train), len(evaluation[""])) == (7040, 1000)
    batch = task.collate([train[at] for at in range(64)])
    assert 1 not in batch["input_ids"]  # [UNK]
    assert task.forward(task.build_model(), batch).logits.shape == (64, 2)
    other = build(made, "quickstart", data_dir=made / "rte")
    other.prepare()
    assert len(other.build_datasets().train) == 7
