import pytest
import torch
from torch import nn

from iddpm.training.ema import Ema, ema_decay, ema_name


class One(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("table", torch.arange(3.0))


def after(updates, rate, warmup):
    module = One()
    ema = Ema(module, (rate,), warmup)
    with torch.no_grad():
        module.weight.fill_(1.0)
    for step in range(updates):
        ema.update(step)
    return float(ema.state_dict(rate)["weight"])


def test_trn_03_average_has_the_closed_form():
    assert after(50, 0.99, warmup=False) == pytest.approx(1 - 0.99**50, abs=1e-6)
    assert after(50, 0.99, warmup=False) == pytest.approx(0.394994, abs=1e-6)


def test_trn_03_warm_up_has_the_documented_decay():
    average = 0.0
    for step in range(200):
        decay = min(0.9, (1 + step) / (10 + step))
        average = decay * average + (1 - decay)
    assert after(200, 0.9, warmup=True) == pytest.approx(average, abs=1e-6)
    # The product of (1 + s) / (10 + s) telescopes: after n updates the old value weighs 9! n! / (n + 9)!.
    assert 1 - after(3, 0.9999, warmup=True) == pytest.approx(362880 * 6 / 479001600, abs=1e-6)


def test_decay_never_passes_the_configured_rate():
    assert [ema_decay(0.9, step, warmup=True) for step in (0, 1, 80, 10_000)] == [0.1, 2 / 11, 0.9, 0.9]
    assert ema_decay(0.9999, 0, warmup=False) == 0.9999


def test_rates_are_averaged_side_by_side():
    module = One()
    ema = Ema(module, (0.5, 0.9), warmup=False)
    with torch.no_grad():
        module.weight.fill_(1.0)
    ema.update(0)
    assert float(ema.state_dict(0.5)["weight"]) == pytest.approx(0.5)
    assert float(ema.state_dict(0.9)["weight"]) == pytest.approx(0.1)


def test_averaging_leaves_the_weights_alone_and_is_not_tied_to_them():
    module = One()
    ema = Ema(module, (0.5,), warmup=False)
    with torch.no_grad():
        module.weight.fill_(1.0)
    assert float(ema.state_dict(0.5)["weight"]) == 0.0
    ema.update(0)
    assert module.weight.tolist() == [1.0]


def test_state_loads_strictly_and_goes_on_from_where_it_was():
    module = One()
    ema = Ema(module, (0.9,), warmup=False)
    with torch.no_grad():
        module.weight.fill_(1.0)
    ema.update(0)
    state = {name: tensor.clone() for name, tensor in ema.state_dict(0.9).items()}
    One().load_state_dict(state, strict=True)
    other = Ema(module, (0.9,), warmup=False)
    other.load_state_dict(0.9, state)
    for average in (ema, other):
        average.update(1)
    assert torch.equal(ema.state_dict(0.9)["weight"], other.state_dict(0.9)["weight"])
    assert float(other.state_dict(0.9)["weight"]) == pytest.approx(0.19)


def test_names_say_the_rate():
    assert ema_name(0.9999) == "ema-0.9999"
    assert ema_name(0.5) == "ema-0.5"
