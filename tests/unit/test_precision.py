import pytest
import torch
from torch import nn

from iddpm.runtime.precision import autocast, fast_bf16, resolve_precision

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("has_bf16", "has_amx", "expected"), [(False, False, "float32"), (True, False, "bf16"), (False, True, "bf16")]
)
def test_auto_takes_bf16_where_the_cpu_computes_it_fast(monkeypatch, has_bf16, has_amx, expected):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_amx)
    assert fast_bf16(CPU) == (expected == "bf16")
    assert resolve_precision("auto", CPU) == expected


def test_what_is_asked_is_what_is_used():
    assert resolve_precision("bf16", CPU) == "bf16"
    assert resolve_precision("float32", CPU) == "float32"


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bf16", torch.bfloat16)])
def test_forward_runs_in_the_precision_and_weights_stay_float32(precision, dtype):
    net = nn.Linear(4, 4)
    with autocast(precision, CPU):
        out = net(torch.ones(2, 4))
    out.float().sum().backward()
    assert out.dtype == dtype
    assert net.weight.dtype == net.weight.grad.dtype == torch.float32
