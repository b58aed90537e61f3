"""Files in GLUE's real format with a small vocabulary and model, and the tasks that read them."""

import json

import pytest
import torch

from configs import plugins
from muster.errors import UsageError
from tests.train import alone

WORDS = '[PAD] [UNK] [CLS] [SEP] [MASK] a cat sat . the dog ran did it ? " ##s'.split()
MODEL = {"model_type": "bert", "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1}
MODEL |= {"num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 32}
MODEL |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
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
    "emotion": ("text;label_name\n", "The cat{s} ; sat .;{label}\n", ["sadness", "joy"]),
}


def rows(form, count):
    _, row, labels = form
    return "".join(
        row.format(i=i, label=labels[i % len(labels)], s=" sat" * (i % 4)) for i in range(count)
    )


def make(folder):
    """Write GLUE files per task, a vocabulary and a model's configuration to `folder`."""
    for task, form in FORMS.items():
        of_task = folder / task
        of_task.mkdir()
        if task == "emotion":
            for name, count in (("train", 7), ("val", 5), ("test", 5)):
                (of_task / f"{name}.txt").write_text(form[0] + rows(form, count))
            continue
        (of_task / "train.tsv").write_text(form[0] + rows(form, 7), encoding="utf-8")
        if task == "mnli":
            dev_row = form[1].replace("{label}\t{label}", "\t".join(["{label}"] * 6))
            text = MNLI.format(labels=DEV_LABELS) + rows((None, dev_row, form[2]), 5)
            (of_task / "dev_matched.tsv").write_text(text)
            (of_task / "dev_mismatched.tsv").write_text(text)
        else:
            (of_task / "dev.tsv").write_text(form[0] + rows(form, 5), encoding="utf-8")
    return small(folder, WORDS)


def small(folder, words, model=MODEL):
    """Write a vocabulary of `words` and the model's configuration to `folder`."""
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "config.json").write_text(json.dumps(model))
    return folder


def build(folder, task="rte", **settings):
    """Make a task on the files in its own folder, with the vocabulary and the model."""
    own = {"data_dir": folder / task, "max_seq_length": 24} | settings
    return plugins.load("train.tasks", task)(alone.settings(folder, task=task, **own))


def prepared(folder, task="rte", **settings):
    built = build(folder, task, **settings)
    built.prepare()
    assert built.is_prepared()
    return built


def trained(folder, task, **settings):
    built = build(folder, task, **settings)
    return alone.train(built.config, folder, built)


def pads_agree(folder, task):
    """Whether short samples give equal outputs, padded to the longest or to --max-seq-length."""
    outputs, chosen = [], []
    for pad in ("longest", "max_length"):
        built = prepared(folder, task, pad=pad)
        torch.manual_seed(0)
        model = built.build_model().double().eval()
        samples = list(built.build_datasets().train)
        widths = [built.collate([one])["input_ids"].shape[1] for one in samples]
        chosen = chosen or [at for at, width in enumerate(widths) if width < 24]
        outputs.append(built.forward(model, built.collate([samples[at] for at in chosen])))
    assert len(chosen) > 2 and set(widths) == {24}
    return all(torch.allclose(*pair, atol=1e-12) for pair in zip(*outputs, strict=True))


def refusal(folder, task="rte", **settings):
    """Return the one-line message on why the task cannot be prepared or has no model."""
    built = build(folder, task, **settings)
    with pytest.raises(UsageError) as error:
        built.prepare()
        built.build_model()
    assert "\n" not in str(error.value)
    return str(error.value)
