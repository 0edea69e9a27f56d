import torch

from iddpm.data.codec import PixelCodec

LEVELS = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)


def test_all_256_levels_come_back():
    codec = PixelCodec()
    assert torch.equal(codec.decode(codec.encode(LEVELS)), LEVELS)


def test_levels_span_minus_one_to_one_evenly():
    x0 = PixelCodec().encode(LEVELS).flatten()
    assert x0.dtype == torch.float32
    assert (x0[0].item(), x0[-1].item()) == (-1.0, 1.0)
    assert torch.allclose(x0.diff(), torch.full((255,), 2 / 255), atol=1e-6)


def test_decode_rounds_to_the_nearest_level():
    codec = PixelCodec()
    nudged = codec.encode(LEVELS) + 0.98 / 255  # a little less than half a level
    assert torch.equal(codec.decode(nudged), LEVELS)
    assert torch.equal(codec.decode(codec.encode(LEVELS) - 0.98 / 255), LEVELS)


def test_decode_clamps():
    far = torch.tensor([-7.0, 7.0]).reshape(2, 1, 1, 1)
    assert PixelCodec().decode(far).flatten().tolist() == [0, 255]


def test_encode_leaves_the_pictures_alone():
    images = LEVELS.clone()
    PixelCodec().encode(images)
    assert torch.equal(images, LEVELS)
