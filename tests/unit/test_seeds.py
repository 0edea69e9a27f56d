import numpy as np
import pytest
import torch

from iddpm.runtime.seeds import Draws, Stream, derived_seed, permutation, philox

# Random123's known answers for Philox4x32-10: counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_philox_gives_the_published_answers(counter, key, result):
    counter = tuple(torch.tensor([word]) for word in words(counter))
    given = philox(counter, tuple(words(key)))
    assert [int(word) for word in given] == words(result)


def test_philox_counts_each_word_of_its_own():
    together = philox(tuple(torch.arange(5) + 2**32 - 5 for _ in range(4)), (1, 2))
    for row in range(5):
        alone = philox(tuple(torch.tensor([row + 2**32 - 5]) for _ in range(4)), (1, 2))
        assert [int(word[row]) for word in together] == [int(word) for word in alone]


def draws(count=4, seed=0, step=0, first=0):
    return Draws(seed, step, torch.arange(first, first + count))


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_row_does_not_depend_on_its_batch(kind):
    whole = getattr(draws(9), kind)(Stream.NOISE, 3, 5)
    later = getattr(draws(2, first=6), kind)(Stream.NOISE, 3, 5)
    alone = getattr(Draws(0, 0, torch.tensor([8, 2])), kind)(Stream.NOISE, 3, 5)
    assert torch.equal(whole[6:8], later)
    assert torch.equal(whole[[8, 2]], alone)
    assert torch.equal(getattr(draws(9)[3:5], kind)(Stream.NOISE, 3, 5), whole[3:5])


def test_streams_steps_seeds_and_indices_differ():
    noise = draws(1).normal(Stream.NOISE, 64)[0]
    others = [
        draws(1).normal(Stream.BOUND, 64)[0],
        draws(1, step=1).normal(Stream.NOISE, 64)[0],
        draws(1, step=2**32).normal(Stream.NOISE, 64)[0],
        draws(1, seed=1).normal(Stream.NOISE, 64)[0],
        draws(1, seed=2**32).normal(Stream.NOISE, 64)[0],
        draws(1, first=1).normal(Stream.NOISE, 64)[0],
        draws(1, first=2**32).normal(Stream.NOISE, 64)[0],
    ]
    for other in others:
        assert not (noise == other).any()
    streams = torch.stack([draws(1).uniform(stream, 8)[0] for stream in Stream])
    assert len(streams.unique()) == streams.numel()


def test_values_of_a_row_differ_and_shapes_are_as_asked():
    row = draws(1).uniform(Stream.NOISE, 1000)[0]
    assert len(row.unique()) == 1000
    assert draws(3).uniform(Stream.TIMESTEP).shape == (3,)
    assert draws(3).uniform(Stream.TIMESTEP).dtype == torch.float64
    assert draws(3).normal(Stream.NOISE, 1, 3, 3).shape == (3, 1, 3, 3)
    assert draws(3).normal(Stream.NOISE).dtype == torch.float32


@pytest.mark.parametrize("step", [0, 7])
def test_normal_has_the_moments_of_a_normal(step):
    x = draws(200, step=step).normal(Stream.NOISE, 999).double().flatten()
    assert abs(x.mean()) < 4 / len(x) ** 0.5
    assert abs(x.var() - 1) < 4 * (2 / len(x)) ** 0.5
    assert abs((x**3).mean()) < 4 * (15 / len(x)) ** 0.5
    assert abs((x**4).mean() - 3) < 4 * (96 / len(x)) ** 0.5
    assert 4 < x.abs().max() < 6.7
    assert x.isfinite().all()


def test_normal_values_are_uncorrelated_within_and_across_rows():
    x = draws(2000).normal(Stream.NOISE, 8).double()
    correlation = torch.corrcoef(torch.cat([x[:-1], x[1:]], dim=1).T)
    assert (correlation - torch.eye(16)).abs().max() < 5 / 2000**0.5


def test_uniform_fills_the_open_interval_evenly():
    u = draws(500).uniform(Stream.TIMESTEP, 400).flatten()
    assert 0 < u.min() < 1e-4
    assert 1 - 1e-4 < u.max() < 1
    counts = torch.histc(u, bins=20, min=0, max=1)
    expected = len(u) / 20
    assert ((counts - expected) ** 2 / expected).sum() < 45  # 19 degrees of freedom: 1 in 1000 is above 43.8


def test_uniform_never_reaches_the_ends(monkeypatch):
    extremes = torch.tensor([[0, 2**32 - 1]])
    monkeypatch.setattr("iddpm.runtime.seeds._words", lambda *_: extremes)
    assert draws(1).uniform(Stream.TIMESTEP, 2)[0].tolist() == [2.0**-33, 1 - 2.0**-33]


def test_normal_is_finite_at_the_ends(monkeypatch):
    extremes = torch.tensor([[0, 2**32 - 1, 0, 2**32 - 1]])
    monkeypatch.setattr("iddpm.runtime.seeds._words", lambda *_: extremes)
    assert draws(1).normal(Stream.NOISE, 4).isfinite().all()


def test_permutation_is_one_per_seed_and_epoch():
    first = permutation(0, 0, 100)
    assert sorted(first) == list(range(100))
    assert first.dtype == np.int64
    assert (first == permutation(0, 0, 100)).all()
    assert (first != permutation(0, 1, 100)).any()
    assert (first != permutation(1, 0, 100)).any()


def test_derived_seeds_differ_by_every_part():
    seeds = {
        derived_seed(seed, stream, a, b)
        for seed in (0, 1)
        for stream in (Stream.INIT, Stream.DROPOUT)
        for a in (0, 1)
        for b in (0, 1)
    }
    assert len(seeds) == 16
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derived_seed(3, Stream.INIT) == derived_seed(3, Stream.INIT)
