import copy
import json
from dataclasses import replace

import pytest

from iddpm.diffusion.objective import Vlb
from iddpm.experiment.identity import MAY_CHANGE, check_same_run, config_from_json, config_to_json, differences
from iddpm.experiment.recipes import RECIPES, recipe
from iddpm.runtime.errors import ConfigError, RunError
from iddpm.training.settings import AdamW, CosineRate, FaultPolicy


@pytest.fixture
def config():
    return recipe("digits-8").config()


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_comes_back_from_json(name):
    config = recipe(name).config()
    text = json.dumps(config_to_json(config), allow_nan=False)
    again = config_from_json(json.loads(text))
    assert again == config
    assert json.dumps(config_to_json(again)) == text


def test_variants_carry_their_name(config):
    value = config_to_json(replace(config, objective=Vlb(decoder="continuous"), optimizer=AdamW(weight_decay=0.1)))
    assert value["objective"] == {"decoder": "continuous", "kind": "Vlb"}
    assert value["optimizer"]["kind"] == "AdamW"
    assert value["diffusion"]["schedule"]["kind"] == "Cosine"
    again = config_from_json(value)
    assert (again.objective, again.optimizer) == (Vlb(decoder="continuous"), AdamW(weight_decay=0.1))


def changed(config, path, value):
    result = copy.deepcopy(config_to_json(config))
    *parents, last = path.split(".")
    inner = result
    for key in parents:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return result


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("train.warmth", 3),
        ("surprise", 1),
        ("objective.gamma", 2),
        ("diffusion.schedule.slope", 0.1),
        ("train.steps", ...),
        ("train.lr", "fast"),
        ("diffusion.variance", "guessed"),
        ("train.precision", "float8"),
        ("objective.kind", "Adversarial"),
        ("net.multipliers", ["wide"]),
        ("data", None),
    ],
)
def test_what_a_config_cannot_hold_is_an_error_that_names_it(config, path, value):
    with pytest.raises(RunError) as refused:
        config_from_json(changed(config, path, value))
    assert path.rsplit(".", 1)[-1] in refused.value.what or str(value) in refused.value.what
    assert "\n" not in refused.value.what
    assert refused.value.fix


def test_impossible_value_in_a_config_is_an_error(config):
    with pytest.raises(RunError, match="label-drop"):
        config_from_json(changed(config, "diffusion.label_drop", 1.5))


def test_differences_are_named_by_path():
    old = {"a": {"b": 1, "c": [1, 2]}, "d": None}
    new = {"a": {"b": 2, "c": [1, 2]}, "d": {"e": 1}, "f": 3}
    assert list(differences(old, new)) == [("a.b", 1, 2), ("d", None, {"e": 1}), ("f", None, 3)]
    assert list(differences(old, copy.deepcopy(old))) == []


def test_same_config_is_the_same_run(config):
    assert check_same_run(config, copy.deepcopy(config)) == {}


CHANGES = {
    "steps": 999, "micro_batch_size": 4, "precision": "bf16", "channels_last": "yes", "log_every": 7,
    "checkpoint_every": 7, "keep_checkpoints": 7, "keep_every": 7, "preview_every": 7,
    "activation_checkpointing": "blocks", "snapshot_every": 7, "evaluate_every": 7, "evaluate_num": 7, "evaluate_steps": 7,
    "gradient_noise_scale": True,
    "parallel": "fsdp",
}  # fmt: skip
FAULTS = ("patience", "rollbacks", "lr_factor", "hang_seconds")


@pytest.mark.parametrize("name", CHANGES)
def test_what_may_change_on_resume_is_told(config, name):
    config = replace(config, train=replace(config.train, ema_widths=(0.1,)))
    new = replace(config, train=replace(config.train, **{name: CHANGES[name]}))
    old_value = getattr(config.train, name)
    assert check_same_run(config, new) == {f"train.{name}": (old_value, CHANGES[name])}


def test_what_is_done_about_faults_and_which_checkpoints_are_best_may_change(config):
    faults = FaultPolicy(patience=1, rollbacks=1, lr_factor=0.1, hang_seconds=5.0)
    new = replace(config, train=replace(config.train, faults=faults))
    assert set(check_same_run(config, new)) == {f"train.faults.{name}" for name in FAULTS}
    measured = replace(config, train=replace(config.train, evaluate_every=100, checkpoint_every=100))
    best = replace(measured, train=replace(measured.train, keep_best=1))
    assert check_same_run(measured, best) == {"train.keep_best": (None, 1)}


def test_every_path_that_may_change_is_covered_here():
    apart = {"train.keep_best", *(f"train.faults.{name}" for name in FAULTS)}
    data = {"data.source", "data.labels", "data.background"}
    assert {f"train.{name}" for name in CHANGES} | data | apart == MAY_CHANGE


def test_the_same_data_may_lie_elsewhere_on_resume(config):
    moved = replace(config, data=replace(config.data, source="elsewhere"))
    assert check_same_run(config, moved) == {"data.source": (config.data.source, "elsewhere")}
    other = replace(config, data=replace(config.data, source="elsewhere", content_hash="f" * 64))
    with pytest.raises(ConfigError, match=r"data\.content_hash"):
        check_same_run(config, other)


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("train.lr", lambda c: replace(c, train=replace(c.train, lr=1e-5))),
        ("train.batch_size", lambda c: replace(c, train=replace(c.train, batch_size=3))),
        ("train.seed", lambda c: replace(c, train=replace(c.train, seed=5))),
        ("train.ema", lambda c: replace(c, train=replace(c.train, ema=(0.5,)))),
        ("train.lr_schedule", lambda c: replace(c, train=replace(c.train, lr_schedule=CosineRate()))),
        ("data.size", lambda c: replace(c, data=replace(c.data, size=16))),
        ("data.content_hash", lambda c: replace(c, data=replace(c.data, content_hash="0"))),
        ("net.blocks", lambda c: replace(c, net=replace(c.net, blocks=2))),
        ("objective.kind", lambda c: replace(c, objective=Vlb())),
        ("optimizer.kind", lambda c: replace(c, optimizer=AdamW())),
    ],
)
def test_what_may_not_change_is_refused_by_path(config, path, new):
    with pytest.raises(ConfigError, match=path) as refused:
        check_same_run(config, new(config))
    assert "--out" in str(refused.value.fix)


def test_refusal_of_very_many_differences_stays_short(config):
    with pytest.raises(ConfigError, match=r"and \d+ more") as refused:
        check_same_run(config, recipe("imagenet64").config())
    assert len(refused.value.what) < 400
