"""Steps that are not finite, runs that go back, memory that runs out."""

import math
from dataclasses import replace

import pytest
import torch

from iddpm.artifacts.checkpoint import list_checkpoints, load_state
from iddpm.artifacts.run_dir import start_run_dir
from iddpm.commands.entering import config_for_store
from iddpm.commands.fitting import micro_batch
from iddpm.commands.train import train
from iddpm.data.loader import Batches
from iddpm.data.store import open_store
from iddpm.experiment.build import DiffusionTask, build_net, build_task
from iddpm.runtime.errors import ConfigError, OutputError, TrainingError
from iddpm.runtime.telling import SILENT
from iddpm.runtime.world import open_world
from iddpm.training.settings import FaultPolicy
from iddpm.training.state import new_state
from tiny import Interrupting, Lines, journalled, losses_of, same, tensors_of, tiny_config

CPU = torch.device("cpu")


@pytest.fixture
def config(small_digits):
    return tiny_config(small_digits, dropout=0.3, train_steps=12)


def with_train(config, **settings):
    return replace(config, train=replace(config.train, **settings))


def break_steps(monkeypatch, broken):
    """Make the loss of every pass whose draws are `broken` NaN."""
    whole = DiffusionTask.__call__

    def call(self, batch, draws):
        terms = whole(self, batch, draws)
        return replace(terms, loss=terms.loss * math.nan) if broken(draws) else terms

    monkeypatch.setattr(DiffusionTask, "__call__", call)


def checkpoint_steps(run):
    return [checkpoint.step for checkpoint in list_checkpoints(run / "checkpoints")]


def test_prc_01_network_that_stays_nan_stops_training_and_spares_weights_and_averages(config, tmp_path, monkeypatch):
    taken = []
    break_steps(monkeypatch, lambda draws: taken.append(draws.step) or draws.step >= 30)
    config = with_train(config, steps=200, checkpoint_every=10, log_every=1000, ema_widths=(0.1,))
    told = Lines()
    with pytest.raises(TrainingError, match="10 steps in a row") as stopped:
        train(config, tmp_path / "run", listener=told)
    assert stopped.value.exit_status == 1
    assert "--init" not in str(stopped.value.fix)  # not one good step came from there
    assert max(taken) < 45
    assert checkpoint_steps(tmp_path / "run")[-1] == 30
    tensors = tensors_of(tmp_path / "run", 30)
    assert {"model", "ema-0.99", "power-0.1"} <= {name.partition("/")[0] for name in tensors}
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    assert [entry["to_step"] for entry in journalled(tmp_path / "run", "rollback")] == [30, 20, 30]
    assert journalled(tmp_path / "run", "failed")[0]["step"] == 40
    assert "going back to step 20 (rollback 2 of 3)" in told.text


def test_prc_01_single_bad_step_is_skipped_and_counted_and_the_run_goes_on(config, tmp_path, monkeypatch):
    break_steps(monkeypatch, lambda draws: draws.step == 5)
    told = Lines()
    result = train(config, tmp_path / "run", listener=told)
    assert (result.step, result.skipped_steps, result.rollbacks) == (12, 1, 0)
    counts = {float(tensor) for name, tensor in tensors_of(tmp_path / "run").items() if name.endswith("/step")}
    assert counts == {11.0}
    entries = journalled(tmp_path / "run", "step")
    assert [entry["step"] for entry in entries if "skipped" in entry] == [6]
    assert "loss" not in entries[5]
    assert all(math.isfinite(entry["loss"]) for entry in entries if entry["step"] != 6)
    assert told.text.count("skipped") == 1


def test_skipped_step_leaves_the_weights_as_they_were(config, tmp_path, monkeypatch):
    kept = with_train(config, checkpoint_every=1, keep_checkpoints=20)
    break_steps(monkeypatch, lambda draws: draws.step in (5, 6))
    train(kept, tmp_path / "run")
    # A checkpoint that falls due at a skipped step waits for a good one.
    assert checkpoint_steps(tmp_path / "run") == [1, 2, 3, 4, 5, 8, 9, 10, 11, 12]
    before = {name: value for name, value in tensors_of(tmp_path / "run", 5).items() if name.startswith("optimizer/")}
    after = tensors_of(tmp_path / "run", 8)
    assert all(float(after[name]) == float(value) + 1 for name, value in before.items() if name.endswith("/step"))


def goes_back(config, monkeypatch):
    """A config whose steps 7 to 9 are bad until the run has gone back."""
    break_steps(monkeypatch, lambda draws: draws.seed == config.train.seed and draws.step >= 7)
    return with_train(config, checkpoint_every=3, faults=FaultPolicy(patience=3, lr_factor=0.25))


def test_run_goes_back_with_other_draws_and_a_lower_rate_and_counts_what_it_cost(config, tmp_path, monkeypatch):
    result = train(goes_back(config, monkeypatch), tmp_path / "run")
    assert (result.step, result.steps_done, result.rollbacks) == (12, 16, 1)
    assert result.spent["images"] == 16 * 8
    told = journalled(tmp_path / "run", "rollback")
    assert [(entry["step"], entry["to_step"], entry["lr_factor"]) for entry in told] == [(10, 6, 0.25)]
    rates = [(entry["step"], entry["lr"]) for entry in journalled(tmp_path / "run", "step")]
    assert [step for step, _ in rates] == [*range(1, 11), *range(7, 13)]
    assert {rate for _, rate in rates[:10]} == {config.train.lr}
    assert {rate for _, rate in rates[10:]} == {config.train.lr / 4}
    assert load_state(list_checkpoints(tmp_path / "run" / "checkpoints")[-1])["rollbacks"] == 1


def test_the_data_after_going_back_are_the_same_and_the_noise_is_not(config, tmp_path, monkeypatch):
    seen = []
    whole = DiffusionTask.__call__

    def call(self, batch, draws):
        terms = whole(self, batch, draws)
        seen.append((draws.step, batch.index.tolist(), terms.t.tolist()))
        return terms

    monkeypatch.setattr(DiffusionTask, "__call__", call)
    train(goes_back(config, monkeypatch), tmp_path / "run")
    first, second = ([entry[1:] for entry in seen if entry[0] == 7][i] for i in (0, 1))
    assert first[0] == second[0]
    assert first[1] != second[1]


@pytest.mark.parametrize("stop_at", [8, 11])
def test_run_that_goes_back_resumes_to_the_very_bits(config, tmp_path, monkeypatch, stop_at):
    config = goes_back(config, monkeypatch)
    train(config, tmp_path / "whole")
    stopped = train(config, tmp_path / "parts", listener=Interrupting(stop_at))
    assert stopped.step == stop_at
    train(config, tmp_path / "parts")
    assert same(tensors_of(tmp_path / "whole"), tensors_of(tmp_path / "parts"))
    # The checkpoint that the stop at step 8 left, in the middle of bad steps, is not one to go back to.
    assert [entry["to_step"] for entry in journalled(tmp_path / "parts", "rollback")] == [6]


def test_run_without_a_checkpoint_has_nothing_to_go_back_to(config, tmp_path, monkeypatch):
    break_steps(monkeypatch, lambda draws: True)
    with pytest.raises(TrainingError, match="nothing to go back to; no checkpoint was written"):
        train(config, tmp_path / "run")
    assert checkpoint_steps(tmp_path / "run") == []


def test_run_that_may_not_go_back_stops(config, tmp_path, monkeypatch):
    break_steps(monkeypatch, lambda draws: draws.step >= 4)
    config = with_train(config, steps=40, checkpoint_every=2, faults=FaultPolicy(patience=2, rollbacks=0))
    with pytest.raises(TrainingError, match="rollbacks is 0"):
        train(config, tmp_path / "run")
    assert journalled(tmp_path / "run", "rollback") == []
    assert checkpoint_steps(tmp_path / "run")[-1] == 4


def test_fp16_run_keeps_its_loss_scale_over_a_stop(config, tmp_path, monkeypatch):
    # Overflow at step 2: the scale halves; resumed, it stays there.
    break_steps(monkeypatch, lambda draws: draws.step == 2)
    half = with_train(config, precision="fp16", steps=6)
    whole = train(half, tmp_path / "whole")
    train(half, tmp_path / "parts", listener=Interrupting(4))
    train(half, tmp_path / "parts")
    assert whole.skipped_steps == 1
    assert same(tensors_of(tmp_path / "whole"), tensors_of(tmp_path / "parts"))
    assert losses_of(tmp_path / "whole") == losses_of(tmp_path / "parts")
    scales = [entry["loss_scale"] for entry in journalled(tmp_path / "parts", "step")]
    assert scales == [65536.0] * 2 + [32768.0] * 4
    tensors = tensors_of(tmp_path / "whole")
    assert {value.dtype for name, value in tensors.items() if not name.startswith("task/")} == {torch.float32}


def test_fp16_gradients_are_those_of_float32_whatever_the_scale(config, tmp_path):
    after = {}
    for precision in ("float32", "fp16"):
        train(with_train(config, precision=precision, steps=1, grad_clip=0.1), tmp_path / precision)
        after[precision] = tensors_of(tmp_path / precision)
    names = [name for name in after["fp16"] if name.endswith("/exp_avg")]
    flat = {key: torch.cat([tensors[name].flatten() for name in names]) for key, tensors in after.items()}
    assert float((flat["fp16"] - flat["float32"]).norm() / flat["float32"].norm()) < 1e-2
    assert float(flat["float32"].norm()) == pytest.approx(0.1 * 0.1, rel=1e-3)


def run_out_above(monkeypatch, images):
    """Make passes of more than so many images run out of memory, half way through a batch."""
    whole = DiffusionTask.__call__

    def call(self, batch, draws):
        if len(batch) > images:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nand much more")
        return whole(self, batch, draws)

    monkeypatch.setattr(DiffusionTask, "__call__", call)


def test_memory_that_runs_out_says_what_to_change_and_the_same_command_goes_on(config, tmp_path, monkeypatch):
    train(with_train(config, steps=4), tmp_path / "run")
    with monkeypatch.context() as patched:
        run_out_above(patched, 4)
        with pytest.raises(TrainingError, match="out of memory on cpu with 8 images at a time") as stopped:
            train(config, tmp_path / "run")
    assert stopped.value.exit_status == 1
    assert all(word in str(stopped.value.fix) for word in ("--micro-batch 4 (or auto)", "activation-checkpointing"))
    assert "out of memory" in journalled(tmp_path / "run", "failed")[0]["reason"]
    assert train(with_train(config, micro_batch_size=4), tmp_path / "run").resumed_from == 4


@pytest.mark.slow
def test_auto_micro_batch_shrinks_where_memory_runs_out_and_the_step_stays(config, tmp_path, monkeypatch):
    train(with_train(config, micro_batch_size=2), tmp_path / "two")
    monkeypatch.setattr("iddpm.commands.train.micro_batch", lambda *_: (8, True))
    run_out_above(monkeypatch, 3)
    told = Lines()
    result = train(with_train(config, micro_batch_size="auto"), tmp_path / "auto", listener=told)
    assert result.step == 12
    assert [entry["micro_batch_size"] for entry in journalled(tmp_path / "auto", "micro_batch")] == [8, 4, 2]
    assert same(tensors_of(tmp_path / "two"), tensors_of(tmp_path / "auto"))
    assert told.text.count("out of memory") == 2


def test_auto_micro_batch_is_found_once_and_kept(config, tmp_path, monkeypatch):
    auto = with_train(config, micro_batch_size="auto", steps=2)
    told = Lines()
    train(auto, tmp_path / "run", listener=told)
    assert "micro-batch: 8 of 8 images" in told.text
    monkeypatch.setattr("iddpm.commands.fitting.free_bytes", lambda _: 0)
    train(with_train(auto, steps=4), tmp_path / "run")
    assert [entry["micro_batch_size"] for entry in journalled(tmp_path / "run", "micro_batch")] == [8]
    train(with_train(config, steps=4), tmp_path / "plain")
    assert same(tensors_of(tmp_path / "run"), tensors_of(tmp_path / "plain"))


@pytest.mark.slow
def test_auto_micro_batch_takes_as_much_as_there_is_memory_for(config, small_digits, tmp_path, monkeypatch):
    auto = config_for_store(with_train(config, micro_batch_size="auto"), open_store(small_digits))
    state = new_state(build_task(auto, build_net(auto, CPU), CPU), auto.optimizer, auto.train)
    batches, run = Batches(open_store(small_digits), "train", 8, 0), start_run_dir(tmp_path / "run", {}, {})
    found = []
    for mebibytes in (8, 9, 10, 11, 12, 100):
        monkeypatch.setattr("iddpm.commands.fitting.free_bytes", lambda _, room=mebibytes * 2**20: room)
        try:
            found.append(micro_batch(auto, state, batches, open_world("cpu"), run, SILENT)[0] or 0)
        except ConfigError:
            found.append(0)
    assert found[0] == 0
    assert found[-1] == 8
    assert found == sorted(found)
    # The sizes that split 8 images into equal parts.
    assert set(found) <= {0, 1, 2, 3, 4, 8}
    assert set(found) & {1, 2, 3, 4}
    assert all(parameter.grad is None for parameter in state.task.module.parameters())


def test_best_checkpoints_by_held_out_bits_per_dim_are_kept(config, tmp_path):
    config = with_train(
        config, steps=6, checkpoint_every=1, evaluate_every=1, evaluate_num=4, keep_checkpoints=1, keep_best=2, lr=0.05
    )
    train(config, tmp_path / "run")
    bits = {entry["step"]: entry["bits_per_dim"] for entry in journalled(tmp_path / "run", "evaluation")}
    assert sorted(bits) == [1, 2, 3, 4, 5, 6]
    kept = set(checkpoint_steps(tmp_path / "run"))
    assert 6 in kept
    # Judged when each was written: a checkpoint goes once two better ones are there.
    best: list[int] = []
    for step in sorted(bits):
        best = sorted([*best, step], key=lambda each: bits[each])[:2]
    assert kept == {6, *best}


def test_gradient_noise_scale_is_journalled_and_changes_the_step_by_rounding_alone(config, tmp_path):
    train(config, tmp_path / "plain")
    train(with_train(config, gradient_noise_scale=True, log_every=4), tmp_path / "seen")
    scales = [entry["gradient_noise_scale"] for entry in journalled(tmp_path / "seen", "step")]
    assert len(scales) == 3
    assert all(scale is None or scale > 0 for scale in scales)
    assert any(scales)
    train(with_train(config, micro_batch_size=4), tmp_path / "halves")
    assert same(tensors_of(tmp_path / "halves"), tensors_of(tmp_path / "seen"))


def test_stop_in_a_bad_stretch_leaves_the_only_checkpoint_and_says_so(config, tmp_path, monkeypatch):
    """The weights are good, since skipped steps changed nothing: no start may remove them."""
    break_steps(monkeypatch, lambda draws: draws.step >= 4)
    config = with_train(config, steps=40, faults=FaultPolicy(patience=3))
    assert train(config, tmp_path / "run", listener=Interrupting(5)).step == 5
    for _ in range(2):
        with pytest.raises(TrainingError, match=r"nothing to go back to; .*000000005 stands"):
            train(config, tmp_path / "run")
        assert checkpoint_steps(tmp_path / "run") == [5]


def test_start_after_giving_up_gives_up_at_once_unless_more_is_allowed(config, tmp_path, monkeypatch):
    taken = []
    break_steps(monkeypatch, lambda draws: taken.append(draws.step) or draws.step >= 7)
    config = with_train(config, checkpoint_every=3, faults=FaultPolicy(patience=2, rollbacks=1))
    with pytest.raises(TrainingError, match="gone back once already"):
        train(config, tmp_path / "run")
    taken.clear()
    with pytest.raises(TrainingError, match="gone back once already"):
        train(config, tmp_path / "run")
    assert taken == [6, 7, 8]
    assert len(journalled(tmp_path / "run", "rollback")) == 1
    with pytest.raises(TrainingError, match="gone back 2 times already"):
        train(with_train(config, faults=FaultPolicy(patience=2, rollbacks=2)), tmp_path / "run")


def test_weights_that_are_not_finite_reach_no_checkpoint(config, tmp_path):
    config = with_train(config, steps=9, lr=3e38, checkpoint_every=1, faults=FaultPolicy(rollbacks=1))
    with pytest.raises(TrainingError):
        train(config, tmp_path / "run")
    for step in checkpoint_steps(tmp_path / "run"):
        assert all(tensor.isfinite().all() for tensor in tensors_of(tmp_path / "run", step).values())


@pytest.mark.parametrize(
    "error", [pytest.param(OutputError("cannot write the picture", "free it"), marks=pytest.mark.slow), MemoryError()]
)
def test_hook_that_fails_for_want_of_room_costs_a_warning(config, tmp_path, monkeypatch, error):
    def failing(*_):
        raise error

    monkeypatch.setattr("iddpm.commands.preview.save_samples", failing)
    told = Lines()
    assert train(with_train(config, steps=4, preview_every=2), tmp_path / "run", listener=told).step == 4
    assert [entry["step"] for entry in journalled(tmp_path / "run", "hook_failed")] == [2, 4]
    assert told.text.count("training goes on without it") == 2


def test_hook_with_a_defect_stops_training(config, tmp_path, monkeypatch):
    monkeypatch.setattr("iddpm.commands.preview.save_samples", lambda *_: {}["defect"])
    with pytest.raises(KeyError):
        train(with_train(config, steps=4, preview_every=2), tmp_path / "run")


def test_memory_that_runs_out_later_leaves_a_checkpoint_of_what_was_done(config, tmp_path, monkeypatch):
    whole = DiffusionTask.__call__

    def call(self, batch, draws):
        if draws.step == 5:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")
        return whole(self, batch, draws)

    with monkeypatch.context() as patched:
        patched.setattr(DiffusionTask, "__call__", call)
        with pytest.raises(TrainingError, match="step 6: out of memory"):
            train(config, tmp_path / "run")
    assert checkpoint_steps(tmp_path / "run") == [5]
    train(config, tmp_path / "run")
    train(config, tmp_path / "plain")
    assert same(tensors_of(tmp_path / "run"), tensors_of(tmp_path / "plain"))


@pytest.mark.slow
def test_micro_batch_is_found_anew_for_another_precision(config, tmp_path):
    auto = with_train(config, micro_batch_size="auto", steps=1)
    train(auto, tmp_path / "run")
    train(with_train(auto, steps=2, activation_checkpointing="blocks"), tmp_path / "run")
    found = [entry["fits"] for entry in journalled(tmp_path / "run", "micro_batch")]
    assert len(found) == 2
    assert found[0].endswith("float32, none")
    assert found[1].endswith("float32, blocks")


def test_what_a_kill_took_is_spent_all_the_same(config, tmp_path):
    config = with_train(config, checkpoint_every=4, steps=8)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", listener=Interrupting(7, times=2))
    result = train(config, tmp_path / "run")
    assert result.resumed_from == 4
    assert result.spent["images"] == (7 + 4) * 8
    assert result.spent["flops"] > 0
