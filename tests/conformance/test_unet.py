"""The net against outputs of the original implementation, and its names against the published checkpoints."""

import json
import os
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from iddpm.networks.unet import UNet, UNetConfig

REFERENCE = Path(os.environ.get("IDDPM_REFERENCE", Path(__file__).parent / "reference"))


def read_json(name):
    path = REFERENCE / name
    return json.loads(path.read_text()) if path.is_file() else {}


def read_arrays(*names):
    arrays = {}
    for path in (REFERENCE / name for name in names):
        if path.is_file():
            arrays.update(np.load(path))
    return arrays


CONFIGS = read_json("unet_configs.json")
ARRAYS = read_arrays("unet.npz", "unet_guided.npz")
KEYS = read_json("checkpoint_keys.json")
PUBLISHED = read_json("published_checkpoints.json")
GUIDED_KEYS = read_json("checkpoint_keys_guided.json")
COMPUTED = sorted(name for name in CONFIGS if f"{name}.out" in ARRAYS)

# The page of the guided keys gives their settings in prose.
GUIDED = {
    "adm_64x64_diffusion": {
        "image_size": 64,
        "num_channels": 192,
        "num_res_blocks": 3,
        "channel_mult": [1, 2, 3, 4],
        "attention_resolutions": [32, 16, 8],
        "num_heads": None,
        "num_head_channels": 64,
        "resblock_updown": True,
        "new_attention_order": True,
        "dropout": 0.1,
        "num_classes": 1000,
    },
    "adm_64_256_upsampler": {
        "image_size": 256,
        "num_channels": 192,
        "num_res_blocks": 2,
        "channel_mult": [1, 1, 2, 2, 4, 4],
        "attention_resolutions": [32, 16, 8],
        "num_heads": 4,
        "resblock_updown": True,
        "num_classes": 1000,
        "low_res_size": 64,
    },
}


def built(net):
    config = UNetConfig(
        channels=net["num_channels"],
        multipliers=tuple(net["channel_mult"]),
        blocks=net["num_res_blocks"],
        attention_at=tuple(net["attention_resolutions"]),
        heads=None if net.get("num_head_channels") else net["num_heads"],
        head_channels=net.get("num_head_channels"),
        scale_shift_norm=net.get("scale_shift_norm", True),
        dropout=net.get("dropout", 0.0),
        resample="resblock" if net.get("resblock_updown") else "conv",
        attention_order="qkv_first" if net.get("new_attention_order") else "heads_first",
    )
    return UNet(
        config,
        size=net["image_size"],
        out_channels=6 if net.get("learned_variance", True) else 3,
        num_classes=net.get("num_classes"),
        low_res_channels=3 if net.get("low_res_size") else 0,
    )


def seeded(name, shape):
    z = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(tuple(shape))
    z = z / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 0.1 * z + name.endswith("weight")
    return torch.from_numpy(z.astype(np.float32))


def test_every_output_has_a_configuration():
    if not ARRAYS:
        pytest.skip("no unet.npz in the reference folder")
    assert {name.rsplit(".", 1)[0] for name in ARRAYS} == set(COMPUTED)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", COMPUTED or [pytest.param("", marks=pytest.mark.skip(reason="no unet.npz"))])
def test_outputs_are_those_of_the_original(name, channels_last):
    given = {
        key.removeprefix(f"{name}."): torch.from_numpy(a) for key, a in ARRAYS.items() if key.startswith(f"{name}.")
    }
    net = built(CONFIGS[name])
    net.load_state_dict({key: seeded(key, value.shape) for key, value in net.state_dict().items()}, strict=True)
    net = net.double().eval()
    if channels_last:
        net.use_memory_format(torch.channels_last)
    with torch.no_grad():
        out = net(given["x"], given["t"], label=given.get("y"), low_res=given.get("low_res"))
    torch.testing.assert_close(out, given["out"], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "keys"),
    [pytest.param(name, spec["keys"], id=name) for name, spec in PUBLISHED.items()]
    or [pytest.param("", "", marks=pytest.mark.skip(reason="no published_checkpoints.json"))],
)
def test_published_checkpoints_load_strictly(name, keys):
    with torch.device("meta"):
        net = built(PUBLISHED[name]["net"])
    assert {key: list(value.shape) for key, value in net.state_dict().items()} == KEYS[keys]
    state = {key: torch.empty(shape, device="meta") for key, shape in KEYS[keys].items()}
    net.load_state_dict(state, strict=True, assign=True)


@pytest.mark.parametrize(
    "name",
    [name for name in GUIDED if name in GUIDED_KEYS]
    or [pytest.param("", marks=pytest.mark.skip(reason="no checkpoint_keys_guided.json"))],
)
def test_guided_checkpoints_have_these_names(name):
    with torch.device("meta"):
        net = built(GUIDED[name])
    assert {key: list(value.shape) for key, value in net.state_dict().items()} == GUIDED_KEYS[name]
