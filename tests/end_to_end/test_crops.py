"""Random crops from the command line to the samples and the bits per dim."""

import json

from iddpm.cli.main import main
from iddpm.data.store import open_store


def test_random_crops_are_trained_sampled_and_measured(tmp_path, capsys):
    small = [
        "--train-steps",
        "2",
        "--train.batch-size",
        "4",
        "--net.multipliers",
        "1",
        "1",
        "--diffusion.schedule.timesteps",
        "8",
    ]
    run = str(tmp_path / "run")
    assert (
        main(["train", "digits-8", "--crop", "random", "--data.crop.min-scale", "0.5", "--out", run, "--json", *small])
        == 0
    )
    facts = json.loads(capsys.readouterr().out)
    assert open_store(facts["store"]).size == 16
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["data"]["crop"] == {"kind": "RandomCrop", "min_scale": 0.5, "max_scale": 1.0}
    assert main(["train", "digits-8", "--crop", "random", "--data.crop.min-scale", "0.5", "--out", run, *small]) == 0
    assert main(["train", "digits-8", "--crop", "random", "--out", run, *small]) == 2
    assert "data.crop.min_scale" in capsys.readouterr().err
    assert main(["sample", run, "--num", "2", "--steps", "2", "--json"]) == 0
    capsys.readouterr()
    assert main(["likelihood", run, "--num", "2", "--steps", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_images"] == 2
    assert main(["report", run]) == 0


def test_a_store_of_the_wrong_size_for_crops_is_refused(tmp_path, digits, capsys):
    assert (
        main(["train", "digits-8", "--data", str(digits.path), "--crop", "random", "--out", str(tmp_path / "run")]) == 2
    )
    assert "prepare the source again with --size 10" in capsys.readouterr().err


def test_whole_pictures_alone(tmp_path, capsys):
    from PIL import Image

    (tmp_path / "pictures").mkdir()
    for number, sides in enumerate([(8, 8), (16, 16), (12, 12), (9, 8)]):
        Image.new("RGB", sides, (number, 0, 0)).save(tmp_path / "pictures" / f"{number}.png")
    command = [
        "prepare",
        str(tmp_path / "pictures"),
        "--size",
        "8",
        "--crop",
        "whole",
        "--out",
        str(tmp_path / "store"),
    ]
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["used"], told["ignored"]["count"], told["damaged"]["count"], told["cropped"]) == (3, 1, 0, 0)
    assert told["ignored"]["listed"] == [{"name": "3.png", "reason": "not square: 9x8"}]
