"""BSC's benchmark: a model like DistilBERT on generated samples like emotion's, without files."""

from functools import cached_property, partial
from typing import Any

import torch

from muster.checkout import CHECKOUT
from muster.errors import UsageError
from train.model.rng import hash_seed
from train.tasks.base import Samples
from train.tasks.language import tokens
from train.tasks.language.prepared import TokenSet
from train.tasks.text.classification import GlueTask, Spec

DISTILBERT = CHECKOUT / "configs" / "models" / "distilbert.json"
TRAIN_SAMPLES, EVALUATION_SAMPLES = 1024 * 32, 1024 * 128  # as in the study, by default
SPEC = Spec(
    name="bsc_benchmark",
    text=("text",),
    labels=("sadness", "joy", "love", "anger", "fear", "surprise"),
    pad_multiple=8,
)
# Emotion's lengths with BERT's vocabulary: 4 to 87 tokens, mean 22.3, median 20.
LOG_LENGTH_MEAN, LOG_LENGTH_DEVIATION, SHORTEST, LONGEST = 2.968, 0.529, 4, 87
FIRST_WORD = 999  # lower ids are special or unused in BERT's vocabulary
CLS, SEP = 101, 102


class Benchmark(GlueTask):
    """Samples drawn from the seed, as many as the run uses, and a model with random weights.

    The first word of a sample determines its label, so the loss shows whether the model learns.
    """

    is_ready = True

    def prepare(self) -> None:
        """Check whether the model can take the samples; no file is written.

        Raises:
            UsageError: there is no such model, or it has too few positions or words.
        """
        super().prepare()
        words = self._model_config.vocab_size
        if words <= FIRST_WORD:
            raise UsageError(
                f"--model {self.model} has a vocabulary of {words} tokens, but the benchmark's "
                f"words begin at token {FIRST_WORD}"
                "\ntip: use a model with BERT's vocabulary"
            )

    def sets(self) -> dict[str, Samples]:
        config, words = self.config, self._model_config.vocab_size

        def drawn(size: int, number: int) -> TokenSet:
            return draw(size, words, config.max_seq_length, hash_seed(config.seed, number))

        train = drawn(config.train_samples or TRAIN_SAMPLES, 1)
        return {"train": train, "valid": drawn(config.eval_samples or EVALUATION_SAMPLES, 2)}

    def tokens(self) -> Any | None:
        """The model's own tokenizer, to be saved with it; None if it has none, like the default."""
        try:
            return tokens.load(self.tokenizer, self.config.lower_case)
        except UsageError:
            return None

    @cached_property
    def _loaded_tokenizer(self) -> Any:
        """A tokenizer that only pads, with its only token."""
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast

        knows = Tokenizer(models.WordLevel({"[PAD]": 0}, "[PAD]"))
        return PreTrainedTokenizerFast(tokenizer_object=knows, pad_token="[PAD]")


def draw(size: int, vocabulary: int, longest: int, seed: int) -> TokenSet:
    """Draw `size` samples of random words, with emotion's lengths, within milliseconds."""
    generator = torch.Generator().manual_seed(seed)
    log_lengths = torch.randn(size, generator=generator) * LOG_LENGTH_DEVIATION + LOG_LENGTH_MEAN
    lengths = log_lengths.exp().round().long().clamp(SHORTEST, LONGEST).clamp(max=longest)
    ends = lengths.cumsum(0)
    starts = ends - lengths
    tokens = torch.randint(FIRST_WORD, vocabulary, (int(ends[-1]),), generator=generator)
    labels = tokens[starts + 1] % len(SPEC.labels)
    tokens[starts], tokens[ends - 1] = CLS, SEP
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), ends])
    return TokenSet({"input_ids": tokens.int(), "label": labels, "offsets": offsets})


build = partial(Benchmark, SPEC, model=str(DISTILBERT))
