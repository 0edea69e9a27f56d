import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from iddpm.training.ema import Ema, ema_decay, ema_name, power_decay, power_exponent, power_name, power_width
from iddpm.training.settings import WIDEST


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
    return float(ema.state_dict(ema_name(rate))["weight"])


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
    assert float(ema.state_dict("ema-0.5")["weight"]) == pytest.approx(0.5)
    assert float(ema.state_dict("ema-0.9")["weight"]) == pytest.approx(0.1)


def test_averaging_leaves_the_weights_alone_and_is_not_tied_to_them():
    module = One()
    ema = Ema(module, (0.5,), warmup=False)
    with torch.no_grad():
        module.weight.fill_(1.0)
    assert float(ema.state_dict("ema-0.5")["weight"]) == 0.0
    ema.update(0)
    assert module.weight.tolist() == [1.0]


def test_state_loads_strictly_and_goes_on_from_where_it_was():
    module = One()
    ema = Ema(module, (0.9,), warmup=False)
    with torch.no_grad():
        module.weight.fill_(1.0)
    ema.update(0)
    state = {name: tensor.clone() for name, tensor in ema.state_dict("ema-0.9").items()}
    One().load_state_dict(state, strict=True)
    other = Ema(module, (0.9,), warmup=False)
    other.load_state_dict("ema-0.9", state)
    for average in (ema, other):
        average.update(1)
    assert torch.equal(ema.state_dict("ema-0.9")["weight"], other.state_dict("ema-0.9")["weight"])
    assert float(other.state_dict("ema-0.9")["weight"]) == pytest.approx(0.19)


def test_names_say_the_rate_or_the_width():
    assert ema_name(0.9999) == "ema-0.9999"
    assert ema_name(0.5) == "ema-0.5"
    assert power_name(0.1) == "power-0.1"
    assert Ema(One(), (0.9, 0.5), False, (0.1, 0.05)).names == ("ema-0.9", "ema-0.5", "power-0.1", "power-0.05")


@pytest.mark.parametrize("width", [0.02, 0.1, 0.25])
def test_power_function_average_has_the_closed_form(width):
    module, walk = One(), torch.randn(60, generator=torch.Generator().manual_seed(0)).cumsum(0)
    with torch.no_grad():
        module.weight.fill_(1e6)
    ema = Ema(module, (), False, (width,))
    for step, value in enumerate(walk):
        with torch.no_grad():
            module.weight.fill_(float(value))
        ema.update(step)
    power = power_exponent(width) + 1
    parts = np.diff((np.arange(61) / 60) ** power)  # of the weights after each step; those of the start have none
    assert float(ema.state_dict(power_name(width))["weight"]) == pytest.approx(parts @ walk.numpy(), abs=1e-5)


@pytest.mark.parametrize("width", [1e-4, 0.01, 0.05, 0.1, 0.2, WIDEST, power_width(0.0)])
def test_exponent_is_the_inverse_of_the_relative_width(width):
    exponent = power_exponent(width)
    assert exponent >= 0
    assert power_width(exponent) == pytest.approx(width, rel=1e-14)


def test_relative_width_is_the_deviation_of_the_profile():
    # Of exponent 0, the plain mean; and the two that the paper names with their widths.
    assert power_width(0.0) == pytest.approx(math.sqrt(1 / 12), rel=1e-15)
    assert power_exponent(0.05) == pytest.approx(16.97, abs=0.005)
    assert power_exponent(0.1) == pytest.approx(6.94, abs=0.005)
    times = (np.arange(200_000) + 0.5) / 200_000
    profile = times ** power_exponent(0.1)
    mean = np.average(times, weights=profile)
    assert math.sqrt(np.average((times - mean) ** 2, weights=profile)) == pytest.approx(0.1, rel=1e-6)


def test_first_power_function_update_takes_the_weights_as_they_are():
    assert power_decay(0.0, 0) == 0.0
    assert power_decay(6.94, 0) == 0.0
    assert power_decay(0.0, 3) == 0.75  # the plain mean of four


def test_power_function_average_goes_on_from_where_it_was():
    module = One()
    one, other = Ema(module, (), False, (0.1,)), Ema(module, (), False, (0.1,))
    for step in range(6):
        with torch.no_grad():
            module.weight.fill_(step * 0.3)
        if step == 3:
            other.load_state_dict("power-0.1", {name: t.clone() for name, t in one.state_dict("power-0.1").items()})
        one.update(step)
        if step >= 3:
            other.update(step)
    assert torch.equal(one.state_dict("power-0.1")["weight"], other.state_dict("power-0.1")["weight"])


class Operations(TorchDispatchMode):
    """Keeps the name of every operation."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_update_is_one_operation_in_place_for_each_average():
    ema = Ema(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), (0.9, 0.99), False, (0.1,))
    with Operations() as operations:
        ema.update(0)
    assert operations.names == ["aten::_foreach_lerp_.Scalar"] * 3
