"""`iddpm train`: from words to a config, and what is seen while it works."""

import json
from dataclasses import replace

import pytest

from iddpm.cli import console
from iddpm.cli.main import main
from iddpm.cli.train import _parse
from iddpm.commands.entering import config_for_store
from iddpm.commands.train import train
from iddpm.data.store import open_store
from iddpm.diffusion.objective import Hybrid, Simple, Vlb
from iddpm.diffusion.schedule import Cosine, Linear
from iddpm.diffusion.timesteps import SecondMoment
from iddpm.experiment.recipes import RECIPES, recipe
from iddpm.runtime.errors import ConfigError
from iddpm.training.settings import AdamW, CosineRate
from tiny import Lines, tiny_config


def config_of(*words):
    return _parse(["digits-8", "--out", "run", *words]).config


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_without_flags_is_the_recipe(name):
    assert _parse([name, "--out", "run"]).config == recipe(name).config()


def test_leaves_of_the_config_are_flags():
    config = config_of(
        "--train.lr", "2e-4", "--net.multipliers", "1", "2", "2", "--data.flip", "--train.ema", "0.9", "0.99"
    )
    assert config.train.lr == 2e-4
    assert config.net.multipliers == (1, 2, 2)
    assert config.data.flip is True
    assert config.train.ema == (0.9, 0.99)


def test_steps_and_data_have_short_flags():
    config = config_of("--train-steps", "7", "--data", "pictures")
    assert config.train.steps == 7
    assert config.data.source == "pictures"
    assert config_of("--train.steps", "7", "--data.source", "pictures") == config


@pytest.mark.parametrize(
    ("words", "field", "expected"),
    [
        (["--objective", "simple"], "objective", Simple()),
        (["--objective", "simple", "--objective.min-snr-gamma", "5"], "objective", Simple(min_snr_gamma=5.0)),
        (["--objective=vlb"], "objective", Vlb()),
        (["--objective.bound-weight", "unscaled"], "objective", Hybrid(bound_weight="unscaled")),
        (
            ["--timestep-sampling", "second-moment", "--timestep-sampling.history", "5"],
            "timestep_sampling",
            SecondMoment(history=5),
        ),
        (["--timestep_sampling", "second-moment"], "timestep_sampling", SecondMoment()),
        (["--optimizer", "adamw", "--optimizer.weight-decay", "0.1"], "optimizer", AdamW(weight_decay=0.1)),
    ],
)
def test_variant_is_switched_whole_and_then_its_leaves(words, field, expected):
    assert getattr(config_of(*words), field) == expected


def test_schedule_and_rate_are_switched_too():
    assert config_of("--schedule", "linear").diffusion.schedule == Linear(timesteps=100)
    assert config_of("--schedule", "linear", "--diffusion.schedule.timesteps", "400").diffusion.schedule == Linear(
        timesteps=400
    )
    assert config_of("--diffusion.schedule.s", "0.01").diffusion.schedule == Cosine(timesteps=100, s=0.01)
    assert config_of(
        "--lr-schedule", "cosine", "--train.lr-schedule.warmup-steps", "5"
    ).train.lr_schedule == CosineRate(warmup_steps=5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the recipe comes first"),
        (["--out", "x"], "the recipe comes first"),
        (["digitz", "--out", "x"], "digitz"),
        (["digits-8", "--out", "x", "--train.warp", "9"], "--train.warp"),
        (["digits-8", "--out", "x", "--train.lr", "fast"], "fast"),
        (["digits-8", "--out", "x", "--objective", "none"], "none"),
        (["digits-8", "--out", "x", "--optimizer", "adam", "--optimizer.weight-decay", "0.1"], "weight-decay"),
        (["digits-8", "--out", "x", "--train.lr", "-1"], "train.lr"),
        (["digits-8", "--out", "x", "--train.steps", "0"], "train.steps"),
        (["digits-8", "--out", "x", "--train.preview-every", "0"], "train.preview_every"),
        (["digits-8", "--out", "x", "--diffusion.label-drop", "2"], "label-drop"),
        (["digits-8", "--out", "x", "--net.channels", "33"], "33"),
        (["digits-8", "--out", "x", "--data.size", "9"], "9"),
        (["digits-8", "--out", "x", "--device", "tpu"], "tpu"),
    ],
)
def test_what_cannot_be_is_said_in_a_line_or_two(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert len(err.splitlines()) <= 3
    assert "Traceback" not in err
    assert not list(tmp_path.glob("*"))


def test_json_is_one_object_on_stdout(small_digits, tmp_path, capsys):
    words = ["digits-8", "--data", str(small_digits), "--train-steps", "2", "--train.batch-size", "4"]
    assert main(["train", *words, "--out", str(tmp_path / "run"), "--json"]) == 0
    out, err = capsys.readouterr()
    facts = json.loads(out)
    assert out.count("\n") == 1
    assert (facts["step"], facts["train_steps"], facts["steps_done"], facts["resumed_from"]) == (2, 2, 2, None)
    assert facts["path"] == str(tmp_path / "run")
    assert str(tmp_path / "run") in err
    assert main(["train", *words, "--out", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / "run")]


def test_recipe_with_classes_refuses_pictures_without_labels(small_digits, tmp_path):
    import numpy as np

    from iddpm.data.preparing import prepare

    np.savez(
        tmp_path / "plain.npz",
        np.zeros((20, 8, 8, 3), dtype=np.uint8) + np.arange(20, dtype=np.uint8)[:, None, None, None],
    )
    store = prepare(tmp_path / "plain.npz", 8, tmp_path / "store", channels=1).store
    config = tiny_config(store.path, train_steps=1)
    with pytest.raises(ConfigError, match="no labels") as refused:
        train(config, tmp_path / "run")
    assert "--data.classes None" in str(refused.value.fix)
    assert train(replace(config, data=replace(config.data, classes=None)), tmp_path / "run").step == 1


def test_classes_are_those_of_the_store(small_digits):
    config = config_for_store(tiny_config(small_digits), open_store(small_digits))
    assert (config.data.classes, config.data.class_names[9]) == (10, "9")
    unconditional = replace(config, data=replace(config.data, classes=None, class_names=()))
    assert config_for_store(unconditional, open_store(small_digits)).data.classes is None


def test_what_it_will_be_is_said_before_the_first_step(small_digits, tmp_path):
    told = Lines()
    train(tiny_config(small_digits, train_steps=12), tmp_path / "run", listener=told)
    assert f"run: {tmp_path / 'run'}" in told.lines
    assert "0.32M parameters" in told.text
    assert "learning rate 0.001" in told.text
    assert "12 steps of 8 images" in told.text
    assert "to go, at" in told.text
    assert told.progressed == [("training", step, 12) for step in range(13)]


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 50.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(console, "time", clock)
    return clock


def test_tim_01_time_left_is_at_the_pace_of_this_session(clock, capsys):
    with console.telling() as listener:
        for step in range(129, 200):
            clock.now += 1.4
            listener.progress("training", step, 1000)
    lines = capsys.readouterr().err.splitlines()
    first = lines[0]
    step = int(first.split()[1].split("/")[0])
    assert first.startswith(f"training: {step}/1000, ")
    minutes = (1000 - step) * 1.4 / 60
    assert f", {int(minutes)} min" in first
    assert step - 129 == 11  # one line in a quarter of a minute, not one a step


def test_end_of_a_task_is_always_told_and_never_has_time_left(clock, capsys):
    with console.telling() as listener:
        listener.progress("training", 1000, 1000, "loss 0.1")
        listener.progress("sampling", 1, 2)
        clock.now += 1
        listener.progress("sampling", 2, 2)
    assert capsys.readouterr().err.splitlines() == ["training: 1000/1000  loss 0.1", "sampling: 2/2"]


def test_the_advice_for_pictures_without_labels_works(tmp_path, capsys):
    """Following it leads to a run, though the recipe hides some labels."""
    import numpy as np

    np.savez(tmp_path / "plain.npz", np.random.default_rng(0).integers(0, 256, (9, 8, 8), dtype=np.uint8))
    command = ["train", "digits-8", "--data", str(tmp_path / "plain.npz"), "--out", str(tmp_path / "run")]
    assert main(command) == 2
    advice = capsys.readouterr().err.rsplit("with ", 1)[1].split()
    assert advice == ["--data.classes", "None", "--diffusion.label-drop", "0"]
    assert main([*command, "--data.classes", "None"]) == 2
    assert "--diffusion.label-drop 0" in capsys.readouterr().err
    assert main([*command, *advice, "--train-steps", "1", "--train.batch-size", "2"]) == 0
