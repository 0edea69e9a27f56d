import math
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from iddpm.commands.entering import config_for_store
from iddpm.commands.train import train
from iddpm.data.loader import Batches
from iddpm.data.preparing import prepare
from iddpm.data.store import open_store
from iddpm.diffusion.objective import Simple, Terms, Vlb
from iddpm.diffusion.timesteps import SecondMoment
from iddpm.experiment.build import build_net, build_task
from iddpm.runtime.seeds import Draws
from iddpm.runtime.world import open_world
from iddpm.training.clock import PhaseClock
from iddpm.training.settings import AdamW, ConstantRate, CosineRate
from iddpm.training.state import new_state
from iddpm.training.step import train_step
from tiny import Interrupting, Lines, journalled, losses_of, same, tensors_of, tiny_config

CPU = torch.device("cpu")


@pytest.fixture
def config(small_digits):
    return tiny_config(small_digits, train_steps=6)


def uniform(config):
    return replace(
        config,
        net=replace(config.net, dropout=0.3),
        data=replace(config.data, flip=True),
        diffusion=replace(config.diffusion, label_drop=0.3),
    )


def importance(config):
    # A chain so short and a history so small that sampling leaves the uniform start within the test.
    schedule = replace(config.diffusion.schedule, timesteps=3)
    return replace(
        config,
        net=replace(config.net, dropout=0.3),
        diffusion=replace(config.diffusion, schedule=schedule),
        objective=Vlb(),
        timestep_sampling=SecondMoment(history=2),
        optimizer=AdamW(weight_decay=0.1),
        train=replace(
            config.train, lr_schedule=CosineRate(warmup_steps=2), micro_batch_size=3, ema=(0.5, 0.9), grad_clip=1.0
        ),
    )


@pytest.mark.parametrize("make", [uniform, importance])
def test_res_02_interrupted_and_resumed_is_uninterrupted(config, tmp_path, make):
    config = make(config)
    train(config, tmp_path / "whole")
    stopped = train(config, tmp_path / "parts", listener=Interrupting(3))
    assert (stopped.step, stopped.stopped_by) == (3, "SIGINT")
    told = Lines()
    resumed = train(config, tmp_path / "parts", listener=told)
    assert (resumed.resumed_from, resumed.step, resumed.steps_done) == (3, 6, 3)
    assert "resumed step 3 from" in told.text
    whole = tensors_of(tmp_path / "whole")
    assert {name.partition("/")[0] for name in whole} >= {"model", "optimizer"}
    assert same(whole, tensors_of(tmp_path / "parts"))
    assert losses_of(tmp_path / "whole") == losses_of(tmp_path / "parts")
    if "task/counts" in whole:
        assert (whole["task/counts"] >= 2).all(), "importance sampling is still in its uniform start"


def test_longer_run_goes_on_from_the_end_of_a_shorter_one(config, tmp_path):
    train(config, tmp_path / "whole")
    train(replace(config, train=replace(config.train, steps=2)), tmp_path / "parts")
    train(config, tmp_path / "parts")
    assert same(tensors_of(tmp_path / "whole"), tensors_of(tmp_path / "parts"))
    assert journalled(tmp_path / "parts", "resume")[0]["changes"] == {"train.steps": [2, 6]}


class InFloat64(nn.Module):
    """A network in float64, for what float32 would round away."""

    def __init__(self, net):
        super().__init__()
        self.net = net.double()

    def forward(self, x, time, **told):
        return self.net(x.double(), time.double(), **told)


def one_step(config, store, micro, monkeypatch, wrap):
    """The losses and the gradient of one step."""
    config = config_for_store(config, store)
    state = new_state(build_task(config, wrap(build_net(config, CPU)), CPU), config.optimizer, config.train)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in state.task.module.parameters():
            # Not the initial weights: with their zeroed layers most gradients are 0.
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    grads = []

    def keep(optimizer, lr, divisor, skip):
        grads.extend(parameter.grad.clone().flatten() for parameter in state.task.module.parameters())

    monkeypatch.setattr("iddpm.training.step.take_step", keep)
    batch = Batches(store, "train", config.train.batch_size, config.train.seed).at(0)
    result = train_step(state, batch, config.train, open_world("cpu"), PhaseClock(), micro)
    return torch.cat([micro.loss.detach() for micro in result.terms]), torch.cat(grads)


def apart(one, other):
    return float((one - other).norm() / other.norm())


# In float32 a convolution's own gradient moves by some 2e-6 with the size of its batch; in float64 nothing else is left.
@pytest.mark.parametrize(("wrap", "within"), [(lambda net: net, 5e-6), (InFloat64, 1e-9)])
@pytest.mark.parametrize("micro", [1, 3])
def test_micro_batch_gives_the_same_loss_and_gradient(config, small_digits, monkeypatch, micro, wrap, within):
    store = open_store(small_digits)
    loss, grad = one_step(config, store, None, monkeypatch, wrap)
    micro_loss, micro_grad = one_step(config, store, micro, monkeypatch, wrap)
    assert apart(micro_loss, loss) < 1e-6
    assert apart(micro_grad, grad) < within


def test_micro_batch_gives_the_same_weights_after_20_steps(small_digits, tmp_path):
    config = tiny_config(small_digits, train_steps=20, batch_size=4, lr=1e-4, timesteps=200)
    train(config, tmp_path / "whole")
    train(replace(config, train=replace(config.train, micro_batch_size=3, log_every=20)), tmp_path / "micro")
    weights = [
        torch.cat([tensor.flatten() for name, tensor in tensors_of(tmp_path / run).items() if name.startswith(group)])
        for group in ("model/", "ema-0.99/")
        for run in ("whole", "micro")
    ]
    assert apart(weights[0], weights[1]) < 1e-5
    assert apart(weights[2], weights[3]) < 1e-5


def first_step(config, folder, **settings):
    """The tensors after one step, and the weights before it."""
    config = replace(config, train=replace(config.train, steps=1, **settings))
    train(config, folder)
    return tensors_of(folder), build_net(config, CPU).state_dict()


@pytest.mark.parametrize(("schedule", "share"), [(ConstantRate(), 1.0), (ConstantRate(warmup_steps=4), 0.25)])
def test_trn_09_optimizer_takes_the_rate_of_the_step(config, tmp_path, schedule, share):
    after, before = first_step(config, tmp_path / "run", lr=1e-2, lr_schedule=schedule)
    # The first step of Adam is as long as the rate, whatever the gradient.
    moved = (after["model/out.2.bias"] - before["out.2.bias"]).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 1e-2 * share), rtol=1e-3, atol=0)


def test_gradient_is_clipped_and_its_norm_is_journalled_unclipped(config, tmp_path):
    after, _ = first_step(config, tmp_path / "run", grad_clip=0.01)
    moments = [tensor for name, tensor in after.items() if name.endswith("/exp_avg")]
    used = float(torch.stack([tensor.norm() for tensor in moments]).norm()) / 0.1  # 1 - beta1
    assert used == pytest.approx(0.01, rel=1e-3)
    assert journalled(tmp_path / "run", "step")[0]["grad_norm"] > 0.1


def test_dropout_is_drawn_anew_for_each_step_and_micro_batch(config, tmp_path, monkeypatch):
    seeds = []
    seed = torch.manual_seed
    monkeypatch.setattr(torch, "manual_seed", lambda value: (seeds.append(value), seed(value))[1])
    train(replace(config, train=replace(config.train, steps=3, micro_batch_size=4)), tmp_path / "run")
    in_training = seeds[-6:]
    assert len(set(in_training)) == 6


def test_trn_05_previews_and_checkpoints_change_nothing(small_digits, tmp_path):
    config = tiny_config(small_digits, timesteps=6, dropout=0.3, label_drop=0.3, train_steps=4)
    train(config, tmp_path / "plain")
    train(replace(config, train=replace(config.train, preview_every=2, checkpoint_every=1)), tmp_path / "seen")
    assert same(tensors_of(tmp_path / "plain"), tensors_of(tmp_path / "seen"))
    assert losses_of(tmp_path / "plain") == losses_of(tmp_path / "seen")
    assert [entry["step"] for entry in journalled(tmp_path / "seen", "preview")] == [2, 4]
    for entry in journalled(tmp_path / "seen", "preview"):
        assert (tmp_path / "seen" / entry["path"] / "grid.png").is_file()
        assert entry["seconds"] > 0


def test_res_12_raw_and_averaged_weights_are_kept_apart(config, tmp_path):
    train(replace(config, train=replace(config.train, steps=2, preview_every=2)), tmp_path / "run")
    tensors = tensors_of(tmp_path / "run", 2)
    raw, average = tensors["model/out.2.bias"], tensors["ema-0.99/out.2.bias"]
    assert not torch.equal(raw, average)
    assert {name[6:] for name in tensors if name.startswith("model/")} == {
        name[9:] for name in tensors if name.startswith("ema-0.99/")
    }


def test_trn_03_average_is_that_of_the_weights_after_every_step(config, tmp_path):
    config = replace(
        config, train=replace(config.train, steps=4, checkpoint_every=1, keep_checkpoints=9, ema=(0.2, 0.99))
    )
    train(config, tmp_path / "run")
    average = {rate: build_net(config, CPU).state_dict()["out.2.weight"].double() for rate in config.train.ema}
    for step in range(4):
        tensors = tensors_of(tmp_path / "run", step + 1)
        for rate in config.train.ema:
            decay = min(rate, (1 + step) / (10 + step))
            average[rate] = decay * average[rate] + (1 - decay) * tensors["model/out.2.weight"].double()
            torch.testing.assert_close(
                tensors[f"ema-{rate:g}/out.2.weight"].double(), average[rate], rtol=1e-5, atol=1e-8
            )


def test_trn_01_total_is_respected_and_a_checkpoint_of_it_is_left(config, tmp_path):
    told = Lines()
    result = train(replace(config, train=replace(config.train, steps=5)), tmp_path / "run", listener=told)
    assert (result.step, result.steps_done, result.stopped_by) == (5, 5, None)
    counts = {float(tensor) for name, tensor in tensors_of(tmp_path / "run", 5).items() if name.endswith("/step")}
    assert counts == {5.0}
    assert "5 steps of 8 images" in told.text
    assert str(tmp_path / "run") in told.lines[1] + told.lines[0]
    assert str(tmp_path / "run" / "checkpoints" / "000000005") in told.lines[-1]


def test_finished_run_is_left_as_it_is(config, tmp_path):
    config = replace(config, train=replace(config.train, steps=2))
    train(config, tmp_path / "run")
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "run" / "checkpoints").rglob("*")}
    again = train(config, tmp_path / "run")
    assert (again.steps_done, again.step, again.resumed_from) == (0, 2, 2)
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "run" / "checkpoints").rglob("*")} == before
    shorter = train(replace(config, train=replace(config.train, steps=1)), tmp_path / "run")
    assert (shorter.steps_done, shorter.step) == (0, 2)
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "run" / "checkpoints").rglob("*")} == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_step_and_leaves_a_checkpoint(config, tmp_path, number):
    before = signal.getsignal(number)
    told = Interrupting(2, number)
    result = train(config, tmp_path / "run", listener=told)
    assert (result.step, result.stopped_by) == (2, number.name)
    assert signal.getsignal(number) == before
    assert "optimizer/time_embed.0.weight/exp_avg" in tensors_of(tmp_path / "run", 2)
    assert journalled(tmp_path / "run", "interrupt")[0]["stopped_by"] == number.name
    assert "the same command goes on from there" in told.lines[-1]


def test_second_sigint_stops_at_once_and_harms_nothing(config, tmp_path):
    config = replace(config, train=replace(config.train, checkpoint_every=2))
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", listener=Interrupting(3, times=2))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert train(config, tmp_path / "run").resumed_from == 2


def test_dat_12_fewer_images_than_a_batch_work_with_a_note(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "five.npz", images, np.arange(5) % 2)
    store = prepare(tmp_path / "five.npz", 8, tmp_path / "store", channels=1).store
    told = Lines()
    result = train(tiny_config(store.path, train_steps=2), tmp_path / "run", listener=told)
    assert result.step == 2
    notes = [line for line in told.lines if line.startswith("note: ")]
    assert len(notes) == 1
    assert f"{len(store.train)} images" in notes[0]
    assert "batch of 8" in notes[0]


def test_journal_says_what_happened_and_what_it_took(trained, trained_config):
    start = journalled(trained, "start")[0]
    assert (start["step"], start["train_steps"], start["batch_size"], start["precision"]) == (0, 8, 8, "float32")
    steps = journalled(trained, "step")
    # Every 2 steps, and before each checkpoint (every 3 steps and at the end).
    assert [entry["step"] for entry in steps] == [2, 3, 4, 6, 8]
    for entry in steps:
        assert entry["parts"].keys() == {"mse", "bound"}
        assert math.isfinite(entry["loss"])
        assert entry["grad_norm"] > 0
        assert entry["images_per_second"] > 0
        assert entry["peak_memory_bytes"] > 10e6
        assert entry["lr"] == trained_config.train.lr
        assert {"data", "forward", "backward", "optimizer", "ema"} <= entry["seconds"].keys()
        assert all(seconds >= 0 for seconds in entry["seconds"].values())
    assert [entry["step"] for entry in journalled(trained, "checkpoint")] == [3, 6, 8]
    assert [entry["step"] for entry in journalled(trained, "end")] == [8]
    spent = sum(sum(entry["seconds"].values()) for entry in steps)
    assert 0 < spent <= journalled(trained, "end")[0]["seconds"]


def test_elapsed_time_counts_all_sessions(config, tmp_path):
    train(config, tmp_path / "run", listener=Interrupting(3))
    train(config, tmp_path / "run")
    elapsed = [entry["elapsed_seconds"] for entry in journalled(tmp_path / "run", "step")]
    assert elapsed == sorted(elapsed)
    sessions = [journalled(tmp_path / "run", name)[0]["seconds"] for name in ("interrupt", "end")]
    assert journalled(tmp_path / "run", "end")[0]["elapsed_seconds"] == pytest.approx(sum(sessions), abs=0.5)


def plain(config):
    return replace(config, data=replace(config.data, classes=None))


def guided(config):
    return replace(config, diffusion=replace(config.diffusion, label_drop=0.1))


def enlarging(config):
    return replace(config, data=replace(config.data, low_res=4))


def simple(config):
    diffusion = replace(config.diffusion, variance="fixed_large")
    return replace(config, objective=Simple(min_snr_gamma=5.0), diffusion=diffusion)


@pytest.mark.parametrize("make", [plain, lambda config: config, guided, enlarging, simple])
def test_dst_06_every_weight_gets_a_gradient(config, small_digits, make):
    store = open_store(small_digits)
    config = config_for_store(make(config), store)
    task = build_task(config, build_net(config, CPU), CPU)
    batch = Batches(store, "train", 8, 0).at(0)
    task(batch, Draws(0, 0, batch.place)).loss.sum().backward()
    assert [name for name, parameter in task.module.named_parameters() if parameter.grad is None] == []


def labels_told(config, store, count):
    """The labels that the network is told, of `count` examples, and the true ones."""
    config = config_for_store(config, store)
    task = build_task(config, build_net(config, CPU), CPU)
    told = []

    def objective(denoiser, x0, t, noise, cond):
        told.append(cond.label)
        return Terms(loss=torch.zeros(len(t)), parts={}, t=t)

    task.objective = objective
    batch = Batches(store, "train", count, 0).at(0)
    task(batch, Draws(0, 5, batch.place))
    return told[0], batch.labels


def test_label_drop_hides_the_share_asked_for(config, digits):
    config = replace(config, diffusion=replace(config.diffusion, label_drop=0.2))
    told, true = labels_told(config, digits, 4000)
    hidden = told == 10
    assert abs(hidden.double().mean() - 0.2) < 4 * (0.2 * 0.8 / 4000) ** 0.5
    assert torch.equal(told[~hidden], true[~hidden])


def test_without_label_drop_no_label_is_hidden(config, digits):
    told, true = labels_told(config, digits, 500)
    assert torch.equal(told, true)
