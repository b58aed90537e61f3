"""Quickstart: a small BERT on a generated entailment set, with nothing to download."""

from pathlib import Path

from configs.settings.train import TrainConfig
from muster.checkout import CHECKOUT
from train.tasks.language import classifier
from train.tasks.sources import cache
from train.tasks.text import generated
from train.tasks.text.classification import GlueTask, Spec

SMALL_BERT = CHECKOUT / "configs" / "models" / "small-bert.json"
SPEC = Spec(
    name="quickstart",
    text=("sentence1", "sentence2"),
    labels=("entailment", "not_entailment"),
)


class Quickstart(GlueTask):
    """RTE's form and code; data, vocabulary and model are ours unless flags name others."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(SPEC, config, str(SMALL_BERT))
        # Named by the generator's source, so that another version uses another folder.
        texts = (Path(generated.__file__), generated.WORDS)
        version = cache.fingerprint(path.read_bytes() for path in texts)
        self._generated = cache.root(config.cache_dir) / f"quickstart-data-{version}"
        self.data_dir = config.data_dir or self._generated
        if config.tokenizer is None and classifier.is_configuration(self.model):
            self.tokenizer = str(self._generated / "vocab.txt")

    def prepare(self) -> None:
        """Generate the set, then continue as for any other GLUE task.

        Raises:
            UsageError: something that the flags name is missing or does not fit.
        """
        generated.write(self._generated)
        super().prepare()


build = Quickstart
