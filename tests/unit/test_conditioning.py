import pytest
import torch

from iddpm.data.loader import Batch
from iddpm.experiment.conditioning import conditioning, low_resolution, null_label, sample_labels
from iddpm.experiment.config import DataConfig
from iddpm.runtime.errors import ConfigError


def data(**settings):
    return DataConfig(**({"source": "x", "size": 8, "channels": 1} | settings))


def batch(labels=True):
    images = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8)
    place = torch.arange(4)
    return Batch(images, torch.tensor([3, 1, 2, 0]) if labels else None, place, place)


ANIMALS = {"classes": 3, "class_names": ("cat", "dog", "emu")}


def test_network_without_classes_is_told_no_label():
    x0 = torch.zeros(4, 1, 8, 8)
    assert conditioning(data(), batch(), x0).label is None
    assert conditioning(data(), batch(), x0).low_res is None


def test_network_with_classes_is_told_the_labels():
    cond = conditioning(data(classes=4), batch(), torch.zeros(4, 1, 8, 8))
    assert cond.label.tolist() == [3, 1, 2, 0]


def test_upsampler_is_told_the_average_of_each_box():
    x0 = torch.randn(4, 1, 8, 8)
    cond = conditioning(data(low_res=4), batch(), x0)
    boxes = torch.stack([x0[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)]).mean(0)
    torch.testing.assert_close(cond.low_res, boxes)
    assert torch.equal(cond.low_res, low_resolution(x0, 4))


def test_null_label_follows_the_number_of_classes():
    assert null_label(data(classes=3)) == 3
    assert null_label(data(classes=1000)) == 1000
    with pytest.raises(ConfigError, match="without classes"):
        null_label(data())


def test_classes_take_turns_unless_one_is_asked_for():
    assert sample_labels(data(**ANIMALS), 7, None).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert sample_labels(data(), 7, None) is None


@pytest.mark.parametrize(("asked", "label"), [("dog", 1), ("emu", 2), ("0", 0), ("2", 2)])
def test_label_is_found_by_name_or_number(asked, label):
    assert sample_labels(data(**ANIMALS), 2, asked).tolist() == [label, label]


def test_dat_08_name_of_a_numbered_class_is_its_name_never_its_place():
    numbered = data(classes=4, class_names=("0", "1", "2", "10"))
    assert sample_labels(numbered, 1, "10").tolist() == [3]
    with pytest.raises(ConfigError, match="no such class"):
        sample_labels(numbered, 1, "3")


@pytest.mark.parametrize("asked", ["3", "-1", "cow", "", "1.0", "Dog", "²"])
def test_smp_10_label_that_is_not_there_is_refused_with_those_that_are(asked):
    with pytest.raises(ConfigError, match=f"--label {asked}: ") as refused:
        sample_labels(data(**ANIMALS), 1, asked)
    assert "cat, dog, emu" in str(refused.value.fix)


def test_label_for_a_run_without_classes_is_refused():
    with pytest.raises(ConfigError, match="without classes"):
        sample_labels(data(), 1, "0")


def test_refusal_among_very_many_classes_stays_short():
    with pytest.raises(ConfigError) as refused:
        sample_labels(data(classes=1000), 1, "1000")
    assert "and 980 more" in str(refused.value.fix)
