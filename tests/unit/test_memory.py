"""Peaks in closed form, predictions against measurements, what fits against fakes, what is free against written files."""

import math
import os
import weakref

import pytest
import torch

from iddpm.cost import memory
from iddpm.cost.memory import Fit, fitting_micro_batch, free_bytes, peak_bytes, predicted_peak_bytes
from iddpm.networks.unet import UNet, UNetConfig
from iddpm.runtime.errors import ConfigError
from iddpm.runtime.memory import is_out_of_memory

CPU, META = torch.device("cpu"), torch.device("meta")
KIB = 1024
GIB = 2**30


def floats(kibibytes, device=CPU):
    return torch.zeros(kibibytes * KIB // 4, device=device)


@pytest.mark.parametrize("device", [CPU, META], ids=str)
def test_a_peak_is_what_is_alive_at_once(device):
    def run():
        a = floats(100, device)
        b = a + 1  # 200
        del a
        c = torch.cat([b, b])  # 100 + 200
        del b
        return c * 2  # 200 + 200

    assert peak_bytes(run, device) == 400 * KIB


@pytest.mark.parametrize("device", [CPU, META], ids=str)
def test_views_and_results_in_place_are_no_memory_of_their_own(device):
    def run():
        a = floats(100, device)
        views = [a[:10], a.view(-1, 2), a.expand(5, -1), a.detach(), a.view(-1, 2).t()]
        a.add_(1).mul_(2)
        torch.add(a, 1, out=views[1].view(-1))
        return views

    assert peak_bytes(run, device) == 100 * KIB


def test_a_view_keeps_the_whole_of_its_memory():
    def run():
        first = floats(100)[:1]
        second = floats(50)
        return first, second

    assert peak_bytes(run, CPU) == 150 * KIB


def test_what_was_there_before_is_not_counted():
    before = floats(1000)
    assert peak_bytes(lambda: before.view(-1, 4).t().add_(1), CPU) == 0
    assert peak_bytes(lambda: (before * 2, before[:10]), CPU) == 1000 * KIB


def test_other_devices_are_not_counted():
    assert peak_bytes(lambda: (floats(10), floats(100, META)), CPU) == 10 * KIB
    assert peak_bytes(lambda: (floats(10), floats(100, META)), META) == 100 * KIB


@pytest.mark.parametrize("device", [CPU, META], ids=str)
def test_the_backward_pass_is_seen(device):
    """exp keeps its result; three of them are alive as the last gradient is made, and sum's gradient is a view of one number."""
    x = floats(100, device).requires_grad_()
    forward = peak_bytes(lambda: x.exp().exp().exp().sum(), device)
    both = peak_bytes(lambda: torch.autograd.grad(x.exp().exp().exp().sum(), x), device)
    assert forward == 300 * KIB + 4
    assert both == pytest.approx(400 * KIB, abs=16)


def test_types_of_autocast_are_seen():
    a, b = torch.zeros(64, 128), torch.zeros(128, 32)
    with torch.autocast("cpu", torch.bfloat16):
        assert peak_bytes(lambda: a @ b, CPU) == 2 * (64 * 128 + 128 * 32 + 64 * 32)


def test_errors_pass_through_a_measurement():
    with pytest.raises(ZeroDivisionError):
        peak_bytes(lambda: 1 // 0, CPU)


def test_the_line_goes_through_the_two_largest():
    assert predicted_peak_bytes({1: 100}, 3) == 300
    assert predicted_peak_bytes({2: 300, 1: 200}, 4) == 500
    assert predicted_peak_bytes({1: 0, 2: 300, 4: 400}, 8) == 600


def test_a_larger_batch_is_predicted_from_small_ones():
    torch.manual_seed(0)
    net = UNet(UNetConfig(channels=32, multipliers=(1, 1), blocks=1, attention_at=()), size=32, out_channels=6)

    def peak(batch):
        def step():
            net(torch.zeros(batch, 3, 32, 32), torch.zeros(batch)).square().mean().backward()
            net.zero_grad(set_to_none=True)

        return peak_bytes(step, CPU)

    predicted = predicted_peak_bytes({batch: peak(batch) for batch in (1, 2, 4)}, 8)
    assert predicted == pytest.approx(peak(8), rel=0.1)


class Device:
    """A step whose peak is given, and that fails beyond some number of images, or of bytes taken."""

    def __init__(self, peak, fails_at=math.inf):
        self.peak, self.fails_at, self.run = peak, fails_at, []

    def __call__(self, size):
        self.run.append(size)
        if size >= self.fails_at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        torch.empty(self.peak(size), dtype=torch.uint8, device=META)


def fit(step, batch, free, **options):
    return fitting_micro_batch(step, batch, free, META, **options)


def test_a_batch_that_fits_is_not_split():
    step = Device(lambda size: 1000 + 10 * size)
    assert fit(step, 128, 10**9) == Fit(
        micro_batch=128, peak_bytes=2280, free_bytes=10**9, tried={1: 1010, 2: 1020, 4: 1040, 128: 2280}
    )
    assert step.run == [1, 2, 4, 128]


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 12, 100, 128])
@pytest.mark.parametrize("free", [1200, 1300, 1500, 2000, 2500, 4000])
@pytest.mark.parametrize("reserve", [0, 50])
def test_the_answer_is_the_fewest_equal_parts_that_fit(batch, free, reserve):
    step = Device(lambda size: 1000 + 10 * size)
    found = fit(step, batch, free, reserve_bytes=reserve)
    parts = next(k for k in range(1, batch + 1) if 1000 + 10 * -(-batch // k) + reserve <= int(0.9 * free))
    assert found.micro_batch == -(-batch // parts)
    assert found.peak_bytes == 1000 + 10 * found.micro_batch
    assert len(step.run) == len(set(step.run))
    assert sum(step.run) <= 3 * batch


def test_no_trial_takes_much_more_than_there_is():
    """Where few images are dominated by what does not grow, a line through them promises too much."""
    step = Device(lambda size: max(1000 + size, 100 * size))
    found = fit(step, 1024, 8000)
    assert found.micro_batch == 69  # 1024 in 15 parts; 72 at most
    assert max(peak for peak in found.tried.values() if peak is not None) <= 2 * 8000


def test_where_memory_runs_out_fewer_are_taken():
    step = Device(lambda size: 10 * size, fails_at=33)
    found = fit(step, 128, 10**9)
    assert found.micro_batch == 32
    assert found.tried[128] is None
    assert found.tried[32] == 320


def test_a_failed_trial_lets_go_of_what_it_held():
    """Before the next one; an error holds the frames that it came through."""
    held = weakref.WeakSet()

    def step(size):
        assert not held
        activations = floats(1, META)
        held.add(activations)
        if size > 2:
            raise torch.OutOfMemoryError("out of memory")

    assert fit(step, 8, 10**9).micro_batch == 2


def test_other_errors_are_not_taken_for_lack_of_memory():
    with pytest.raises(RuntimeError, match="shape"):
        fit(lambda size: torch.zeros(2, device=META).view(3), 4, 10**9)


@pytest.mark.parametrize(
    ("step", "free", "reserve", "said"),
    [
        (Device(lambda size: 3 * GIB * size), 2 * GIB, 0, r"2\.00 GiB .* 90% .* needs 3\.00 GiB\n"),
        (Device(lambda size: GIB), 2 * GIB, GIB, r"needs 1\.00 GiB and training 1\.00 GiB besides\n"),
        (Device(lambda size: 0, fails_at=1), 2 * GIB, 0, r"needs more than that\n"),
    ],
)
def test_not_even_one_image(step, free, reserve, said):
    with pytest.raises(ConfigError, match=said) as error:
        fit(step, 8, free, reserve_bytes=reserve)
    assert "--train.activation-checkpointing blocks" in str(error.value)
    assert str(error.value).count("\n") == 1
    assert step.run[-1] == 1


def test_a_real_net_is_fitted():
    torch.manual_seed(0)
    net = UNet(UNetConfig(channels=32, multipliers=(1,), blocks=1, attention_at=()), size=16, out_channels=3)

    def step(size):
        net(torch.zeros(size, 3, 16, 16), torch.zeros(size)).square().mean().backward()
        net.zero_grad(set_to_none=True)

    peak = peak_bytes(lambda: step(6), CPU)
    found = fitting_micro_batch(step, 24, 2 * peak, CPU)
    assert found.micro_batch == 6
    assert found.peak_bytes == peak


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
        ),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 16 bytes."),
        RuntimeError("MPS backend out of memory (MPS allocated: 1.00 GB)"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("could not create a primitive"),
        MemoryError(),
    ],
)
def test_errors_of_memory_are_known(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error", [RuntimeError("shape '[3]' is invalid"), ValueError("out of memory"), OSError(28, "full")]
)
def test_other_errors_are_not(error):
    assert not is_out_of_memory(error)


def test_what_this_cpu_allocator_says_is_known():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def machine(monkeypatch, root, **files):
    """A file system that says so."""
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setattr(memory, "_ROOT", root)


MEMINFO = {"proc/meminfo": "MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:    5000 kB\n"}
VERSION_2 = {
    "proc/self/cgroup": "0::/jobs/one\n",
    "sys/fs/cgroup/jobs/one/memory.max": "max\n",
    "sys/fs/cgroup/jobs/one/memory.current": "100\n",
    "sys/fs/cgroup/jobs/memory.max": "9000\n",
    "sys/fs/cgroup/jobs/memory.current": "7000\n",
    "sys/fs/cgroup/jobs/memory.stat": "anon 1\ninactive_file 400\nactive_file 600\n",
}
VERSION_1 = {
    "proc/self/cgroup": "3:cpu,cpuacct:/x\n2:hugetlb,memory:/jobs\n",
    "sys/fs/cgroup/memory/jobs/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/jobs/memory.usage_in_bytes": "100\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "8000\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "7000\n",
    "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 500\n",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (MEMINFO, 5000 * KIB),
        (MEMINFO | VERSION_2, 2400),
        (MEMINFO | VERSION_1, 1500),
        (MEMINFO | VERSION_2 | {"sys/fs/cgroup/jobs/one/memory.max": "50\n"}, 0),
        (MEMINFO | {"proc/self/cgroup": "0::/elsewhere\n", "sys/fs/cgroup/memory.max": "max\n"}, 5000 * KIB),
    ],
    ids=["system", "version 2", "version 1", "none left", "no limit"],
)
def test_what_is_free_is_the_least_of_the_limits(monkeypatch, tmp_path, files, expected):
    machine(monkeypatch, tmp_path, **files)
    assert free_bytes(CPU) == expected


def test_a_limit_of_the_address_space_counts(monkeypatch, tmp_path):
    resource = pytest.importorskip("resource")
    page = os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (20 * page, 30 * page))
    machine(monkeypatch, tmp_path, **MEMINFO, **{"proc/self/statm": "15 9 3 1 0 1 0\n"})
    assert free_bytes(CPU) == 5 * page


def test_without_proc_it_is_half_of_what_there_is(monkeypatch, tmp_path):
    machine(monkeypatch, tmp_path)
    assert free_bytes(CPU) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def test_this_machine_has_some_and_no_more_than_there_is():
    assert 2**20 < free_bytes(CPU) <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_what_is_unknown_is_said():
    with pytest.raises(ConfigError, match=r"on meta cannot be found out\n.*micro-batch-size"):
        free_bytes(META)


def test_on_a_gpu_what_torch_holds_unused_is_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1000, 9000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 700)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 300)
    assert free_bytes(torch.device("cuda")) == 1400
