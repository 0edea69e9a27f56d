import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

from iddpm.data.loader import Batch
from iddpm.diffusion.objective import Hybrid, Simple, Vlb
from iddpm.experiment.build import build_net, build_task
from iddpm.runtime.errors import ConfigError
from iddpm.runtime.precision import arithmetic, autocast, fast_bf16, resolve_precision
from iddpm.runtime.seeds import Draws
from tiny import tiny_config

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("has_bf16", "has_amx", "expected"), [(False, False, "float32"), (True, False, "bf16"), (False, True, "bf16")]
)
def test_auto_takes_bf16_where_the_cpu_computes_it_fast(monkeypatch, has_bf16, has_amx, expected):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_amx)
    assert fast_bf16(CPU) == (expected == "bf16")
    assert resolve_precision("auto", CPU) == expected


@pytest.mark.parametrize(
    ("capability", "auto", "others"),
    [((7, 5), "float32", ["float32", "bf16", "fp16"]), ((8, 0), "bf16", ["float32", "tf32", "bf16", "fp16"])],
)
def test_what_a_gpu_can_goes_by_its_capability(monkeypatch, capability, auto, others):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert resolve_precision("auto", CUDA) == auto
    for precision in ("float32", "tf32", "bf16", "fp16"):
        if precision in others:
            assert resolve_precision(precision, CUDA) == precision
        else:
            with pytest.raises(ConfigError, match=f"tf32 on cuda: allowed there are auto, {', '.join(others)}"):
                resolve_precision(precision, CUDA)


def test_what_a_cpu_has_not_is_refused():
    assert [resolve_precision(precision, CPU) for precision in ("float32", "bf16", "fp16")] == [
        "float32",
        "bf16",
        "fp16",
    ]
    with pytest.raises(ConfigError, match=r"tf32 on cpu: allowed there are auto, float32, bf16, fp16\n.*8\.0") as error:
        resolve_precision("tf32", CPU)
    assert str(error.value).count("\n") == 1


def test_other_devices_have_the_types_that_torch_says():
    meta = torch.device("meta")
    assert resolve_precision("auto", meta) == "float32"
    for precision in ("bf16", "fp16"):
        with pytest.raises(ConfigError, match="meta: allowed there are auto, float32\n"):
            resolve_precision(precision, meta)
    assert resolve_precision("fp16", torch.device("xpu")) == "fp16"


@pytest.mark.parametrize(
    ("precision", "dtype"), [("float32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.Conv2d(2, 4, 3)])
def test_forward_runs_in_the_precision_and_weights_stay_float32(precision, dtype, layer):
    layer.zero_grad()
    with autocast(precision, CPU):
        out = layer(torch.ones(2, 4) if isinstance(layer, nn.Linear) else torch.ones(1, 2, 5, 5))
    out.float().sum().backward()
    assert out.dtype == dtype
    assert layer.weight.dtype == layer.weight.grad.dtype == torch.float32


def flags():
    """Both of torch's interfaces to TF32; the old one raises where they are mixed."""
    return (
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,
        torch.backends.cudnn.rnn.fp32_precision,
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.get_float32_matmul_precision(),
    )


EXACT = ("ieee", "ieee", "ieee", False, False, "highest")
TF32 = ("tf32", "tf32", "tf32", True, True, "high")


@pytest.fixture
def ampere(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))


@pytest.mark.parametrize(("precision", "expected"), [("float32", EXACT), ("tf32", TF32), ("bf16", EXACT)])
def test_float32_is_float32_on_a_gpu_unless_tf32_is_asked_for(ampere, precision, expected):
    before = flags()
    with warnings.catch_warnings(record=True) as warned, arithmetic(precision, CUDA):
        assert flags() == expected
        other = "tf32" if expected == EXACT else "float32"
        with arithmetic(other, CUDA):
            assert flags() == (TF32 if expected == EXACT else EXACT)
        assert flags() == expected
        with pytest.raises(ZeroDivisionError), arithmetic(other, CUDA):
            raise ZeroDivisionError
        assert flags() == expected
    assert flags() == before
    assert not warned
    assert before != expected  # torch's own: convolutions in TF32, products not


def test_the_forward_pass_has_the_flags_too(ampere):
    with autocast("tf32", CUDA):
        assert flags() == TF32
    with autocast("float32", CUDA):
        assert flags() == EXACT


def test_flags_that_were_mixed_before_are_no_trouble(ampere):
    before = flags()
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        with pytest.raises(RuntimeError, match="mix of the legacy and new"):
            flags()
        with arithmetic("float32", CUDA):
            assert flags() == EXACT
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cuda.matmul.fp32_precision = before[0]
    assert flags() == before


def test_on_a_cpu_no_flag_is_touched():
    before = flags()
    with arithmetic("float32", CPU), autocast("bf16", CPU):
        assert flags() == before


def one_step(objective, precision):
    """Loss and gradients of a class-conditional net whose weights are not those of the start, on the same draws."""
    config = tiny_config("nowhere", precision=precision)
    variance = "fixed_large" if isinstance(objective, Simple) else "learned_range"
    config = replace(
        config,
        objective=objective,
        data=replace(config.data, classes=10),
        diffusion=replace(config.diffusion, variance=variance),
    )
    net = build_net(config, CPU)
    torch.manual_seed(0)
    for parameter in net.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    places = torch.arange(16)
    images = torch.randint(256, (16, config.data.channels, 8, 8), dtype=torch.uint8)
    terms = build_task(config, net, CPU)(Batch(images, places % 10, places, places), Draws(0, 0, places))
    terms.loss.mean().backward()
    return terms, [parameter.grad for parameter in net.parameters()]


@pytest.mark.parametrize("objective", [Simple(), Hybrid(), Vlb()], ids=["simple", "hybrid", "vlb"])
def test_prc_05_losses_and_gradients_are_float32_in_bf16(objective):
    terms, gradients = one_step(objective, "bf16")
    exact, exact_gradients = one_step(objective, "float32")
    assert {terms.loss.dtype, *(part.dtype for part in terms.parts.values())} == {torch.float32}
    assert {gradient.dtype for gradient in gradients} == {torch.float32}
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert terms.loss.mean().item() == pytest.approx(exact.loss.mean().item(), rel=0.02)
    assert terms.loss.mean() != exact.loss.mean()
    flat, exact_flat = (torch.cat([g.flatten() for g in found]) for found in (gradients, exact_gradients))
    assert torch.nn.functional.cosine_similarity(flat, exact_flat, dim=0) > 0.99
