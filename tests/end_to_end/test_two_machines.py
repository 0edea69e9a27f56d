"""Two machines, played by two network namespaces with addresses and names of their own, train one run together.

The commands are those of docs/clusters.md.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tiny import journalled, tensors_of

pytestmark = [pytest.mark.slow, pytest.mark.dist]

ADDRESSES = ("10.77.0.1", "10.77.0.2")
NAMES = ("node1", "node2")
INTERFACES = ("iddpm-veth1", "iddpm-veth2")
OWN_NAMES = "".join(f"{address} {name}\n" for address, name in zip(ADDRESSES, NAMES, strict=True))
LOOPBACK = "".join(f"127.0.1.1 {name}\n" for name in NAMES)  # what Debian's installer writes into /etc/hosts

SETTINGS = (
    *("--train-steps", "20", "--train.lr", "1e-4", "--train.batch-size", "8", "--train.precision", "float32"),
    *("--diffusion.schedule.timesteps", "200", "--net.dropout", "0", "--device", "cpu"),
)


def namespaces() -> tuple[str, str]:
    return f"iddpm-{os.getpid()}-1", f"iddpm-{os.getpid()}-2"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=30)


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[str, str]]:
    """Two namespaces and a cable between them; they are removed afterwards."""
    missing = [tool for tool in ("ip", "unshare", "mount", "hostname") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no network namespaces here: {', '.join(missing)} not found")
    both = namespaces()
    with contextlib.ExitStack() as removed:
        try:
            for name in both:
                ip("netns", "add", name)
                removed.callback(subprocess.run, ["ip", "netns", "delete", name], check=False)
            one, other = INTERFACES
            ip("link", "add", one, "netns", both[0], "type", "veth", "peer", "name", other, "netns", both[1])
            for name, interface, address in zip(both, INTERFACES, ADDRESSES, strict=True):
                ip("-n", name, "address", "add", f"{address}/24", "dev", interface)
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "link", "set", interface, "up")
            # That names of their own can be given is only known by doing it.
            subprocess.run(
                ["ip", "netns", "exec", both[0], "unshare", "--uts", "--mount", "hostname", NAMES[0]],
                check=True,
                capture_output=True,
                text=True,
                timeout=30,
            )
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
        yield both


@pytest.fixture(scope="module")
def alone(digits, tmp_path_factory) -> Path:
    """The run of one process."""
    out = tmp_path_factory.mktemp("alone") / "run"
    subprocess.run([sys.executable, *trained(digits.path, out)], check=True, env=environment(), timeout=300)
    return out


def trained(store: Path, out: Path) -> list[str]:
    return ["-m", "iddpm", "train", "digits-8", "--data", str(store), "--out", str(out), *SETTINGS]


def environment(**more: str) -> dict[str, str]:
    source = Path(__file__).parents[2] / "src"
    return os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"} | more


def agent(number: int, machine: str, hosts: Path, torchrun: list[str], log: Path, **more: str) -> subprocess.Popen[str]:
    """torchrun on one of the machines, which has a name and a file of hosts."""
    place = f'hostname {NAMES[number]} && mount --bind {hosts} /etc/hosts && exec "$@"'
    with log.open("w") as file:
        return subprocess.Popen(
            ["ip", "netns", "exec", machine, "unshare", "--uts", "--mount", "sh", "-c", place, "sh", *torchrun],
            env=environment(**more),
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
        )


def run_on(machines: tuple[str, str], store: Path, folder: Path, hosts: str, told: bool) -> Path:
    """One run by an agent on each of the machines, the second started first; `told` which one keeps the store, and how
    each is reached, where names do not say so."""
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
    out, agents = folder / "run", []
    endpoint = f"{ADDRESSES[0] if told else NAMES[0]}:29400"
    meeting = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
    try:
        for number in (1, 0):
            command = [sys.executable, "-m", "torch.distributed.run", *meeting, "--rdzv-id", "run-1"]
            more = {}
            if told:
                command += ["--local-addr", ADDRESSES[number], "--rdzv-conf", f"is_host={number == 0}"]
                more = {"GLOO_SOCKET_IFNAME": INTERFACES[number]}
            log = folder / f"log-{number}"
            agents.append(
                agent(number, machines[number], folder / "hosts", [*command, *trained(store, out)], log, **more)
            )
        statuses = [process.wait(timeout=240) for process in agents]
    finally:
        for process in agents:
            if process.poll() is None:
                process.terminate()
                process.wait(timeout=60)
    logs = "".join((folder / f"log-{number}").read_text()[-4000:] for number in (0, 1))
    assert statuses == [0, 0], logs
    return out


def apart(run: Path, other: Path, group: str) -> float:
    one, two = (
        torch.cat([t.double().flatten() for name, t in tensors_of(place).items() if name.startswith(group)])
        for place in (run, other)
    )
    return float((one - two).norm() / two.norm())


@pytest.mark.parametrize(
    ("hosts", "told"), [(OWN_NAMES, False), (LOOPBACK, True)], ids=["names-lead-there", "names-lead-to-loopback"]
)
def test_two_machines_train_as_one_process_does(machines, digits, alone, tmp_path, hosts, told):
    run = run_on(machines, digits.path, tmp_path, hosts, told)
    (start,), (end,) = journalled(run, "start"), journalled(run, "end")
    assert (start["processes"], end["step"]) == (2, 20)
    assert tensors_of(run).keys() == tensors_of(alone).keys()
    assert apart(run, alone, "model/") < 1e-5
    assert apart(run, alone, "ema-0.99/") < 1e-5
