"""Pairs are as BERT's pre-training requires, and depend only on seed, epoch and index."""

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
import torch

from train.tasks.pretraining import corpus
from train.tasks.pretraining.segment_pairs import Masking, Pairs, hide, most_per_sample

SPECIAL, MASK, CONTINUES = frozenset(range(5)), 4, frozenset(range(50, 100))
MASKING = Masking(100, MASK, SPECIAL, CONTINUES, 0.15, 99, False)
ROOM = 21  # in samples of 24 tokens


class Words:
    """A tokenizer of numbers: "7 8" is 7, 8."""

    def __call__(self, texts, **_):
        return {"input_ids": [[int(word) for word in text.split()] for text in texts]}


def encoded(documents, room=ROOM):
    return corpus.encode(Words(), documents, room)


def numbered(sizes, start=5):
    """Return a document whose sentences have these numbers of tokens."""
    found = []
    for size in sizes:
        found.append(" ".join(str(5 + (start + at) % 95) for at in range(size)))
        start += size
    return found


CORPUS = encoded([numbered([4, 6, 9, 5, 5, 30]), numbered([3, 3, 3], 40), numbered([2, 8], 70)])


def pairs(epoch):
    masking = MASKING._replace(most=most_per_sample(0.15, ROOM + 3))
    made = Pairs(CORPUS, masking, (2, 3), seed=1, room=ROOM)
    made.epoch = epoch
    return made


def original(sample):
    """Return the sample's tokens before some were hidden."""
    tokens = list(sample.tokens)
    for position, target in zip(sample.positions, sample.targets, strict=True):
        tokens[position] = target
    return tokens


def test_chunks_are_consecutive_sentences_that_fit():
    assert CORPUS["sentences"].tolist() == [0, 4, 10, 19, 24, 29, 50, 59, 62, 65, 68, 70, 78]
    assert CORPUS["documents"].tolist() == [0, 7, 10, 12]
    assert CORPUS["chunks"].tolist() == [
        [0, 0, 3], [0, 3, 5], [0, 5, 6], [0, 6, 7], [1, 7, 10], [2, 10, 12],
    ]  # fmt: skip
    assert CORPUS["input_ids"].dtype == torch.int32


def test_documents_too_short_for_a_pair_are_left_out():
    made = encoded([["7"], [], numbered([4, 4]), ["8"], numbered([2, 2])])
    assert made["documents"].tolist() == [0, 2, 4]
    assert made["sentences"].tolist() == [0, 4, 8, 10, 12]
    assert len(made["input_ids"]) == 12
    assert made["chunks"].tolist() == [[0, 0, 2], [1, 2, 4]]


def text(tokens):
    return f" {' '.join(map(str, tokens))} "


def test_pair_has_segments_of_the_right_documents():
    tokens, sentences = CORPUS["input_ids"].tolist(), CORPUS["sentences"].tolist()
    bounds = [sentences[at] for at in CORPUS["documents"].tolist()]
    documents = [text(tokens[low:high]) for low, high in pairwise(bounds)]
    for epoch in range(40):
        for index, (document, start, end) in enumerate(CORPUS["chunks"].tolist()):
            sample = pairs(epoch)[index]
            whole = original(sample)
            middle = whole.index(3)
            first, second = whole[1:middle], whole[middle + 1 : -1]
            assert (whole[0], whole[-1]) == (2, 3) and len(whole) <= ROOM + 3
            assert sample.segments == [0] * (middle + 1) + [1] * (len(second) + 1)
            chunk = tokens[sentences[start] : sentences[end]]
            assert first and second and first == chunk[: len(first)]
            if end - start > 1:
                assert sentences[start] + len(first) in sentences
            if not sample.is_random_next:
                assert first + second == chunk
                continue
            assert any(text(second) in one for at, one in enumerate(documents) if at != document)


def test_half_of_the_pairs_are_random():
    for index in range(len(CORPUS["chunks"])):
        random = sum(pairs(epoch)[index].is_random_next for epoch in range(600))
        assert 250 < random < 350


def test_masking_follows_80_10_10():
    ways, tokens = Counter(), list(range(5, 105 - 5))
    for seed in range(800):
        made = hide(tokens, MASKING, Random(seed))
        assert len(made.positions) == 14 and made.positions == sorted(set(made.positions))
        assert made.targets == [tokens[at] for at in made.positions]
        for at, target in zip(made.positions, made.targets, strict=True):
            seen = made.tokens[at]
            ways["mask" if seen == MASK else "same" if seen == target else "other"] += 1
        rest = set(range(len(tokens))) - set(made.positions)
        assert all(made.tokens[at] == tokens[at] for at in rest)
    total = ways.total()
    assert ways["mask"] / total == pytest.approx(0.8, abs=0.02)
    assert ways["same"] / total == pytest.approx(0.1, abs=0.015)


def test_masks_skip_special_tokens_and_have_min_and_max_count():
    for seed in range(50):
        made = hide([2, 7, 3, 8, 3], MASKING, Random(seed))
        assert made.positions in ([1], [3])
        many = hide(list(range(5, 50)), MASKING._replace(share=0.5, most=7), Random(seed))
        assert len(many.positions) == 7
    assert most_per_sample(0.15, 128) == 20 and most_per_sample(0.15, 512) == 77


def test_whole_word_masking_masks_all_pieces_of_a_word():
    tokens = [2, 10, 51, 52, 11, 12, 53, 3, 13, 14, 54, 3]
    words = [[1, 2, 3], [4], [5, 6], [8], [9, 10]]
    met = set()
    for seed in range(100):
        made = hide(tokens, MASKING._replace(share=0.3, whole_word=True), Random(seed))
        hidden = set(made.positions)
        assert 1 <= len(hidden) <= 4
        assert all(hidden.isdisjoint(word) or hidden.issuperset(word) for word in words)
        met |= hidden
    assert met == {at for word in words for at in word}


def test_sample_of_special_tokens_has_no_masks():
    made = hide([2, 3], MASKING, Random(1))
    assert made == ([2, 3], [], [])
