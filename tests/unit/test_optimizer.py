import pytest
import torch
from torch import nn

from iddpm.runtime.errors import RunError
from iddpm.training.optimizer import build_optimizer, load_optimizer_tensors, optimizer_tensors, take_step
from iddpm.training.settings import Adam, AdamW


def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def step(net, optimizer, number):
    net(torch.full((5, 3), float(number))).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def by_hand(weight, grads, lr, beta1, beta2, eps, decay):
    m = v = 0.0
    for count, grad in enumerate(grads, start=1):
        m, v = beta1 * m + (1 - beta1) * grad, beta2 * v + (1 - beta2) * grad**2
        weight -= lr * decay * weight
        weight -= lr * (m / (1 - beta1**count)) / ((v / (1 - beta2**count)) ** 0.5 + eps)
    return weight


@pytest.mark.parametrize(
    "spec", [Adam(beta1=0.8, beta2=0.95, eps=1e-3), AdamW(beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.3)]
)
def test_updates_are_the_published_ones(spec):
    net = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        net.weight.fill_(2.0)
    optimizer = build_optimizer(spec, net, 0.1)
    for grad in (1.0, -3.0, 0.5):
        net.weight.grad = torch.full((1, 1), grad)
        optimizer.step()
    decay = spec.weight_decay if isinstance(spec, AdamW) else 0.0
    assert float(net.weight.detach()) == pytest.approx(
        by_hand(2.0, (1.0, -3.0, 0.5), 0.1, 0.8, 0.95, 1e-3, decay), abs=1e-6
    )


def trained(spec, fused, divisors):
    """Weights and moments after steps of one gradient, divided; a divisor of None is a step that is skipped."""
    net = nn.Linear(2, 1)
    nn.init.ones_(net.weight)
    nn.init.ones_(net.bias)
    optimizer = build_optimizer(spec, net, 1.0)
    if not fused:
        defaults = {name: value for name, value in optimizer.defaults.items() if name != "decoupled_weight_decay"}
        optimizer = type(optimizer)(net.parameters(), **defaults | {"fused": False})
    for divisor in divisors:
        for parameter in net.parameters():
            parameter.grad = torch.full_like(parameter, float("nan") if divisor is None else 3.0)
        scale = None if divisor == 1.0 else torch.tensor(divisor or 1.0)
        take_step(optimizer, 0.1, scale, torch.tensor(float(divisor is None)))
        assert all(parameter.grad is None for parameter in net.parameters())
    return {name: value.clone() for name, value in optimizer_tensors(optimizer, net).items()} | net.state_dict()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("spec", [Adam(), AdamW(weight_decay=0.3)])
def test_skipped_step_moves_nothing_and_a_divisor_divides_the_gradient(spec, fused):
    with_skips = trained(spec, fused, [1.0, None, 6.0, None, None])
    without = trained(spec, fused, [1.0, 6.0])
    assert with_skips.keys() == without.keys()
    assert all(torch.equal(with_skips[name], without[name]) for name in without)
    assert float(with_skips["weight/step"]) == 2.0
    # Moments after gradients of 3 and 3/6.
    assert float(with_skips["bias/exp_avg"]) == pytest.approx(0.9 * 0.3 + 0.1 * 0.5)
    assert float(with_skips["bias/exp_avg_sq"]) == pytest.approx(0.999 * 0.009 + 0.001 * 0.25)


def test_fused_and_plain_steps_agree():
    fused, plain = (trained(AdamW(weight_decay=0.3), kind, [1.0, None, 6.0, 0.5]) for kind in (True, False))
    for name in plain:
        torch.testing.assert_close(fused[name], plain[name], rtol=1e-6, atol=1e-7)


def test_frozen_parameters_are_left_out():
    net = module()
    net[0].requires_grad_(False)
    assert [p.shape for group in build_optimizer(Adam(), net, 1e-3).param_groups for p in group["params"]] == [
        (2, 4),
        (2,),
    ]


@pytest.mark.parametrize("spec", [Adam(), AdamW()])
def test_state_goes_on_bit_for_bit(spec):
    net, other = module(), module()
    optimizer = build_optimizer(spec, net, 0.1)
    for number in range(3):
        step(net, optimizer, number)
    tensors = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer, net).items()}
    assert {"0.weight/exp_avg", "1.bias/exp_avg_sq", "0.bias/step"} <= tensors.keys()
    other.load_state_dict(net.state_dict())
    resumed = build_optimizer(spec, other, 0.1)
    load_optimizer_tensors(resumed, other, tensors)
    step(net, optimizer, 3)
    step(other, resumed, 3)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


def test_state_of_another_module_is_refused():
    net = module()
    optimizer = build_optimizer(Adam(), net, 0.1)
    step(net, optimizer, 1)
    tensors = optimizer_tensors(optimizer, net)
    wider = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    with pytest.raises(RunError, match=r"0\.weight"):
        load_optimizer_tensors(build_optimizer(Adam(), wider, 0.1), wider, tensors)
    missing = {name: tensor for name, tensor in tensors.items() if not name.startswith("1.bias")}
    with pytest.raises(RunError, match=r"1\.bias"):
        load_optimizer_tensors(build_optimizer(Adam(), net, 0.1), net, missing)
