from dataclasses import replace

import pytest
import torch

from iddpm.artifacts.checkpoint import save_checkpoint
from iddpm.artifacts.run_dir import start_run_dir
from iddpm.artifacts.tensors import write_tensors
from iddpm.diffusion.objective import Simple
from iddpm.experiment.build import build_net
from iddpm.experiment.identity import config_to_json
from iddpm.experiment.initial import describe, load_initial
from iddpm.runtime.errors import ConfigError, RunError
from tiny import tiny_config

TABLE = "label_emb.weight"


def config_of(names=None, label_drop=0.0, seed=0, classes=None, **net):
    config = tiny_config("digits", label_drop=label_drop, seed=seed)
    if names is not None:
        classes = len(names)
    data = replace(config.data, classes=classes, class_names=tuple(names or ()))
    return replace(config, data=data, net=replace(config.net, **net))


def net_of(config):
    return build_net(config, torch.device("cpu"))


def run_of(folder, config, average_of=lambda tensor: tensor + 1.0):
    """A run whose averaged weights are known; and they."""
    run = start_run_dir(folder, config_to_json(config), {})
    raw = net_of(config).state_dict()
    averaged = {name: average_of(tensor) for name, tensor in raw.items()}
    groups = {"model": raw, "ema-0.99": averaged}
    save_checkpoint(run.checkpoints, 30, groups, {"step": 30}, config_to_json(config))
    return str(run.path), averaged


def test_averaged_weights_of_the_same_network_are_copied_whole(tmp_path):
    source, averaged = run_of(tmp_path / "run", config_of("abc"))
    config = config_of("abc", seed=5)
    net = net_of(config)
    initial = load_initial(net, config, source)
    assert all(torch.equal(tensor, averaged[name]) for name, tensor in net.state_dict().items())
    assert (initial.step, initial.loaded, initial.not_loaded, initial.unused) == (30, len(averaged), (), ())
    assert initial.origin.endswith("000000030/ema-0.99.safetensors")
    assert initial.labels == "label table: 3 of 3 classes by name"
    assert describe(initial) == [
        f"initial weights: {len(averaged)} tensors from {initial.origin}, step 30",
        "label table: 3 of 3 classes by name",
    ]


def test_copying_keeps_the_networks_own_layout_and_parameters(tmp_path):
    source, averaged = run_of(tmp_path / "run", config_of("abc"), lambda t: (t + 1.0).contiguous())
    config = config_of("abc", seed=5)
    net = net_of(config).use_memory_format(torch.channels_last)
    before = dict(net.named_parameters())
    strides = {name: parameter.stride() for name, parameter in before.items()}
    load_initial(net, config, source)
    assert all(parameter is before[name] for name, parameter in net.named_parameters())
    assert {name: parameter.stride() for name, parameter in net.named_parameters()} == strides
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert torch.equal(net.state_dict()["out.2.weight"], averaged["out.2.weight"])


def table_after(tmp_path, old, new):
    source, averaged = run_of(tmp_path / "run", old, lambda t: torch.arange(1.0, t.numel() + 1).view(t.shape))
    net = net_of(new)
    return net.state_dict()[TABLE], averaged[TABLE], load_initial(net, new, source)


def test_rows_go_by_class_name_and_new_classes_start_from_the_null_label(tmp_path):
    table, old, initial = table_after(tmp_path, config_of("abcd", 0.1), config_of("dxby", 0.2))
    null = old[4]
    assert torch.equal(table, torch.stack([old[3], null, old[1], null, null]))
    assert initial.labels == (
        "label table: 2 of 4 classes by name; new ones start from the null label's row: x, y; the null label too"
    )
    assert not any(TABLE in name for name in (*initial.not_loaded, *initial.unused))


def test_new_classes_start_from_the_mean_where_there_was_no_null_label(tmp_path):
    table, old, initial = table_after(tmp_path, config_of("abc"), config_of("cz", 0.2))
    assert torch.allclose(table, torch.stack([old[2], old.mean(0), old.mean(0)]))
    assert "new ones start from the mean of the old rows: z" in str(initial.labels)


def test_null_label_that_is_not_wanted_becomes_no_class(tmp_path):
    """As many rows, and yet not the same table: the last was the null label's."""
    table, old, initial = table_after(tmp_path, config_of("ab", 0.1), config_of("abc"))
    assert torch.equal(table, old[[0, 1, 2]])
    assert "new ones start from the null label's row: c" in str(initial.labels)
    table, old, _ = table_after(tmp_path / "other", config_of("abc"), config_of("cb", 0.1))
    assert torch.allclose(table, torch.stack([old[2], old[1], old.mean(0)]))


def test_rows_go_by_number_where_one_run_knows_no_names(tmp_path):
    table, old, initial = table_after(tmp_path, config_of(classes=3, label_drop=0.1), config_of("abcde", 0.1))
    assert torch.equal(table, old[[0, 1, 2, 3, 3, 3]])
    assert str(initial.labels).startswith("label table: 3 of 5 classes by number; new ones start from the null")
    table, old, _ = table_after(tmp_path / "fewer", config_of("abcde"), config_of(classes=2))
    assert torch.equal(table, old[:2])


def test_order_of_the_same_names_matters(tmp_path):
    table, old, _ = table_after(tmp_path, config_of("abc"), config_of("cab"))
    assert torch.equal(table, old[[2, 0, 1]])


def test_bare_file_goes_by_number_and_its_null_label_with_it(tmp_path):
    config = config_of("abc", 0.1)
    state = {name: tensor + 1.0 for name, tensor in net_of(config).state_dict().items()}
    torch.save({"state_dict": {f"module.{name}": tensor.half() for name, tensor in state.items()}}, tmp_path / "w.pt")
    net = net_of(config)
    initial = load_initial(net, config, str(tmp_path / "w.pt"))
    assert all(torch.equal(tensor, state[name].half().float()) for name, tensor in net.state_dict().items())
    assert (initial.step, initial.unused, initial.not_loaded) == (None, (), ())
    more = config_of("abcdef", 0.1)
    net = net_of(more)
    load_initial(net, more, str(tmp_path / "w.pt"))
    old = state[TABLE].half().float()
    assert torch.allclose(net.state_dict()[TABLE], torch.cat([old, old.mean(0).expand(3, -1)]))


def test_prc_04_half_weights_leave_the_network_in_float32(tmp_path):
    config = config_of("abc")
    write_tensors(
        tmp_path / "w.safetensors", {name: t.bfloat16() for name, t in net_of(config).state_dict().items()}, {}
    )
    net = net_of(config)
    load_initial(net, config, str(tmp_path / "w.safetensors"))
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float32}


def test_classes_may_come_and_go(tmp_path):
    without, with_classes = config_of(), config_of("abc")
    source, averaged = run_of(tmp_path / "a", without)
    net = net_of(with_classes)
    own = net.state_dict()[TABLE].clone()
    initial = load_initial(net, with_classes, source)
    assert initial.not_loaded == (f"{TABLE} (not in the file)",)
    assert (initial.labels, initial.loaded) == (None, len(averaged))
    assert torch.equal(net.state_dict()[TABLE], own)
    source, _ = run_of(tmp_path / "b", with_classes)
    initial = load_initial(net_of(without), without, source)
    assert (initial.unused, initial.not_loaded, initial.labels) == ((TABLE,), (), None)


def test_what_does_not_fit_keeps_its_values_and_is_named_with_both_shapes(tmp_path):
    old = config_of("abc")
    new = replace(old, objective=Simple(), diffusion=replace(old.diffusion, variance="fixed_small"))
    source, averaged = run_of(tmp_path / "run", old)
    net = net_of(new)
    own = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    initial = load_initial(net, new, source)
    assert initial.not_loaded == (
        "out.2.weight (1x32x3x3 here, 2x32x3x3 in the file)",
        "out.2.bias (1 here, 2 in the file)",
    )
    assert initial.unused == ()
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, own[name] if name.startswith("out.2") else averaged[name])
    assert describe(initial)[-1] == f"not loaded, left as initialised: {', '.join(initial.not_loaded)}"


def test_long_lists_are_cut_for_people_and_whole_in_the_record(tmp_path):
    config = config_of("abc")
    state = net_of(config).state_dict()
    extra = {f"extra.{number}": torch.zeros(1) for number in range(9)}
    write_tensors(tmp_path / "w.safetensors", state | extra, {})
    initial = load_initial(net_of(config), config, str(tmp_path / "w.safetensors"))
    assert len(initial.unused) == 9
    assert describe(initial)[-1].endswith("extra.5 and 3 more")


def test_other_network_is_refused_and_nothing_is_touched(tmp_path):
    source, _ = run_of(tmp_path / "run", config_of("abc"))
    wide = config_of("abc", channels=64)
    net = net_of(wide)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(ConfigError, match=r"has \d+% of this network's parameters, at least half") as refused:
        load_initial(net, wide, source)
    assert "time_embed.0.weight (256x64 here, 128x32 in the file)" in refused.value.what
    assert all("\n" not in line for line in (refused.value.what, str(refused.value.fix)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    write_tensors(tmp_path / "w.safetensors", {"foreign": torch.zeros(2)}, {})
    with pytest.raises(ConfigError, match="has 0%") as refused:
        load_initial(net, wide, str(tmp_path / "w.safetensors"))
    assert "it holds, for example: foreign" in str(refused.value.fix)


def test_table_of_another_width_is_named(tmp_path):
    config = config_of("abc")
    state = net_of(config).state_dict() | {TABLE: torch.zeros(3, 7)}
    write_tensors(tmp_path / "w.safetensors", state, {})
    initial = load_initial(net_of(config), config, str(tmp_path / "w.safetensors"))
    assert initial.not_loaded == (f"{TABLE} (3x128 here, 3x7 in the file)",)
    assert initial.labels is None


def test_source_that_is_not_there_is_named(tmp_path):
    config = config_of("abc")
    with pytest.raises(RunError, match="missing does not exist"):
        load_initial(net_of(config), config, str(tmp_path / "missing"))


def test_whole_numbers_are_no_weights(tmp_path):
    config = config_of("abc")
    torch.save({name: tensor.int() for name, tensor in net_of(config).state_dict().items()}, tmp_path / "int.pt")
    with pytest.raises(RunError, match="whole numbers"):
        load_initial(net_of(config), config, str(tmp_path / "int.pt"))


def test_words_beside_the_tensors_of_a_state_dict_are_passed_over(tmp_path):
    config = config_of("abc")
    state = net_of(config).state_dict()
    torch.save({**state, "step": 5, "name": "x"}, tmp_path / "mixed.pt")
    assert load_initial(net_of(config), config, str(tmp_path / "mixed.pt")).loaded == len(state)
