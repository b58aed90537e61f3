"""A cut by length has every sample once, is never slower than a cut that ignores lengths, and is
close to the best cut."""

import itertools
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from train.batches.by_length import PRECISION, Cut
from train.batches.plan import split_batch

WIDTHS = st.lists(st.integers(1, 128), min_size=1, max_size=40)
SHARES = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(sum)
ONE_PASS = 1e9  # a pass costs so much that no rank has two


def plain_of(widths, shares):
    """Return the cut that ignores lengths: each rank's number of samples and its longest."""
    ends = list(itertools.accumulate(split_batch(len(widths), shares), initial=0))
    parts = [widths[start:end] for start, end in itertools.pairwise(ends)]
    return [(len(part), max(part, default=0)) for part in parts]


def slowest(sized, shares):
    return max(n * width / share for (n, width), share in zip(sized, shares, strict=True) if share)


def tokens(part, widths):
    return sum(len(run) * widths[run[-1]] for run in part)


@given(WIDTHS, SHARES, st.sampled_from([0.0, 5.0, 100.0, ONE_PASS]))
@example([10, 47, 67, 8, 59], [7, 5, 1, 9], ONE_PASS)  # slower if ordered by shares alone
def test_slowest_rank_has_no_more_tokens_than_with_lengths_ignored(widths, shares, pass_tokens):
    plain = plain_of(widths, shares)
    ordered = sorted(widths)
    parts = Cut(ordered, shares, pass_tokens).best(plain)
    most = max(
        tokens(part, ordered) / share for part, share in zip(parts, shares, strict=True) if share
    )
    assert most <= slowest(plain, shares) * (1 + 1e-6)


@given(st.lists(st.integers(1, 128), min_size=1, max_size=6), st.integers(1, 3))
def test_cut_with_one_pass_per_rank_is_the_best_of_all(widths, ranks):
    """It is the best even among cuts of any other order, so sorting loses nothing."""
    shares = [1.0] * ranks
    ordered = sorted(widths)
    parts = Cut(ordered, shares, ONE_PASS).best(plain_of(widths, shares))
    best = math.inf
    for owners in itertools.product(range(ranks), repeat=len(ordered)):
        of_ranks = [
            [width for width, owner in zip(ordered, owners, strict=True) if owner == rank]
            for rank in range(ranks)
        ]
        best = min(best, max(len(part) * max(part, default=0) for part in of_ranks))
    assert max(tokens(part, ordered) for part in parts) <= best * (1 + PRECISION)


@given(st.lists(st.integers(1, 128), min_size=1, max_size=64), st.sampled_from([20.0, 100.0]))
def test_cut_of_one_rank_costs_at_most_quarter_above_best(widths, pass_tokens):
    """The best is found by dynamic programming, which is too slow for every step."""
    ordered = sorted(widths)
    (part,) = Cut(ordered, [1.0], pass_tokens).best(plain_of(widths, [1.0]))
    best = [0.0]
    for end in range(1, len(ordered) + 1):
        width = ordered[end - 1]
        best.append(min(best[start] + pass_tokens + (end - start) * width for start in range(end)))
    assert tokens(part, ordered) + len(part) * pass_tokens <= best[-1] * 1.25


def test_tokens_are_in_proportion_to_the_shares():
    ordered = sorted(20 + 108 * number // 255 for number in range(256))
    parts = Cut(ordered, [3.0, 1.0], 100.0).best([(192, 128), (64, 128)])
    first, second = (tokens(part, ordered) for part in parts)
    assert first / second == pytest.approx(3, rel=0.02)
    assert first + second < 1.08 * sum(ordered)


def test_slow_rank_gets_the_one_long_sample():
    ordered = [1] * 90 + [10]
    assert Cut(ordered, [9.0, 1.0], ONE_PASS).best([(82, 10), (9, 1)]) == [
        [range(90)],
        [range(90, 91)],
    ]


def test_cut_has_at_least_the_given_number_of_passes():
    parts = Cut(list(range(20, 84)), [1.0] * 4, ONE_PASS, least=3).best([(16, 83)] * 4)
    assert {len(part) for part in parts} == {3}
