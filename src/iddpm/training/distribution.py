"""How the weights of a network lie over the processes: whole on each (DDP), or split (FSDP2), with torch's own engines.

Optimizer, averages and checkpoints see plain tensors either way: the part of each parameter that is this process's.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from iddpm.runtime.precision import Arithmetic
from iddpm.runtime.world import Parallel, World

__all__ = ["Distribution", "Replicated", "Sharded", "Splittable", "Weights", "distribute"]

_HALF_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@runtime_checkable
class Weights(Protocol):
    """What optimizer and averages need of a module: its parameters as plain tensors, under the module's names."""

    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        """All of them, or this process's part of each."""
        ...

    def parameters(self) -> Iterable[nn.Parameter]:
        """The same, without names."""
        ...

    def named_buffers(self) -> Iterable[tuple[str, Tensor]]:
        """What a state dict holds beside them; whole on each process."""
        ...


@runtime_checkable
class Splittable(Protocol):
    """A network that says how it may be split."""

    def units(self) -> list[nn.Module]:
        """Parts whose weights are gathered at a time, for as long as their own forward or backward pass runs."""
        ...

    def float32_parameters(self) -> list[nn.Parameter]:
        """Parameters that compute in float32 whatever the precision."""
        ...


class Replicated:
    """Whole on each process. Gradients are summed in buckets while the backward pass still runs [torch's DDP].

    Of one process it is the network itself.

    Attributes:
        weights: This process's part: all.
        loss_factor: What the loss is multiplied by, since the engine takes the mean over processes where the sum is meant.
    """

    def __init__(self, net: nn.Module, world: World | None = None):
        self.weights, self.loss_factor = net, 1.0
        self._called: nn.Module = net
        if world is not None and world.size > 1:
            devices = [world.device] if world.device.type == "cuda" else None
            self._called = DistributedDataParallel(net, device_ids=devices, gradient_as_bucket_view=True)
            self.loss_factor = float(world.size)
        self._target = self._called

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The network's forward pass."""
        return self._target(*inputs, **named)

    @contextlib.contextmanager
    def accumulating(self) -> Iterator[None]:
        """Backward passes after which nothing is exchanged yet, since more follow in the same step."""
        with self._called.no_sync() if isinstance(self._called, DistributedDataParallel) else contextlib.nullcontext():
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Passes of which the other processes know nothing."""
        self._target = self.weights
        try:
            yield
        finally:
            self._target = self._called

    def gradients(self) -> list[Tensor]:
        """Those of this process's part, ready for the optimizer."""
        return [p.grad for p in self.weights.parameters() if p.grad is not None]

    def norm(self, tensors: list[Tensor]) -> Float[Tensor, ""]:
        """Euclidean norm of tensors that lie as the weights do and in their order, over all of their parts."""
        return nn.utils.get_total_norm(tensors)

    def part(self, name: str, whole: Tensor) -> Tensor:
        """This process's part of a tensor that lies as this parameter does."""
        del name
        return whole

    def whole(self, name: str, part: Tensor) -> Tensor:
        """The tensor, from the parts of all processes, each of which calls this in the same order."""
        del name
        return part


class Sharded:
    """Split over processes by the first dimension; weights are gathered block by block where they are needed [FSDP2].

    What computes in half precision is gathered in it, and gradients are summed in float32. Norms, the time embedding and
    labels, which compute in float32, are a hundredth of the weights: they stay whole on each process.

    Args:
        net: The network, whole, on this process's device; it is split in place.
        world: The processes.
        mesh: One dimension of processes that share a copy, or two: copies, and the processes that share each.
        precision: Of the forward pass.

    Attributes: as `Replicated`.
    """

    def __init__(self, net: nn.Module, world: World, mesh: Any, precision: Arithmetic):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # a second to import, for few

        assert isinstance(net, Splittable), "a network that says how it may be split"
        net.to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]  # the engine splits nothing else
        policy = MixedPrecisionPolicy(
            param_dtype=_HALF_TYPES.get(precision), reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        kept_whole = set(net.float32_parameters())
        for unit in net.units():
            fully_shard(unit, mesh=mesh, mp_policy=policy, ignored_params=kept_whole)
        self._net: Any = fully_shard(net, mesh=mesh, mp_policy=policy, ignored_params=kept_whole)
        self._named = dict(net.named_parameters())
        self._pieces = mesh.get_group("pieces")
        self._world = world
        self.weights, self.loss_factor = _Parts(net), float(world.size)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The network's forward pass."""
        return self._net(*inputs, **named)

    @contextlib.contextmanager
    def accumulating(self) -> Iterator[None]:
        """See `Replicated`."""
        self._net.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._net.set_requires_gradient_sync(True)

    def gradients(self) -> list[Tensor]:
        """See `Replicated`. They move from the network to the parts; those of what is kept whole are summed here."""
        kept_whole: list[Tensor] = []
        for name, own in self.weights.named_parameters():
            gradient = self._named[name].grad
            if _is_split(gradient):
                own.grad, self._named[name].grad = _local(gradient), None
            elif gradient is not None:
                kept_whole.append(gradient)
        _average(kept_whole, self._world)
        return [p.grad for p in self.weights.parameters() if p.grad is not None]

    def norm(self, tensors: list[Tensor]) -> Float[Tensor, ""]:
        """See `Replicated`."""
        split = [_is_split(parameter) for parameter in self._named.values()]
        assert len(split) == len(tensors), "a tensor for each parameter"
        square = nn.utils.get_total_norm([t for t, cut in zip(tensors, split, strict=True) if cut]).double().square()
        dist.all_reduce(square, group=self._pieces)
        rest = nn.utils.get_total_norm([t for t, cut in zip(tensors, split, strict=True) if not cut])
        return (square + rest.double().square()).sqrt().float()

    def part(self, name: str, whole: Tensor) -> Tensor:
        """See `Replicated`."""
        parameter = self._named[name]
        if not _is_split(parameter):
            return whole
        each = -(-len(whole) // dist.get_world_size(self._pieces))
        return whole[min(dist.get_rank(self._pieces) * each, len(whole)) :][:each]

    def whole(self, name: str, part: Tensor) -> Tensor:
        """See `Replicated`."""
        parameter: Any = self._named[name]
        if not _is_split(parameter):
            return part
        from torch.distributed.tensor import DTensor

        lies = {"shape": parameter.shape, "stride": parameter.stride(), "run_check": False}
        return DTensor.from_local(part, parameter.device_mesh, parameter.placements, **lies).full_tensor()


def _average(tensors: list[Tensor], world: World) -> None:
    """The mean over all processes, in place, in one exchange."""
    flat = world.sum(torch.cat([tensor.flatten() for tensor in tensors])).div_(world.size)
    means = flat.split([tensor.numel() for tensor in tensors])
    torch._foreach_copy_(tensors, [mean.view_as(tensor) for mean, tensor in zip(means, tensors, strict=True)])


class _Parts:
    """This process's parts of a module's parameters: plain tensors that share their memory."""

    def __init__(self, module: nn.Module):
        self._parameters = {
            name: nn.Parameter(_local(parameter)) if _is_split(parameter) else parameter
            for name, parameter in module.named_parameters()
        }
        self._buffers = dict(module.named_buffers())

    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        return self._parameters.items()

    def parameters(self) -> Iterable[nn.Parameter]:
        return self._parameters.values()

    def named_buffers(self) -> Iterable[tuple[str, Tensor]]:
        return self._buffers.items()


Distribution = Replicated | Sharded


def _local(parameter: Any) -> Tensor:
    return parameter.detach().to_local()


def _is_split(tensor: Tensor | None) -> bool:
    return hasattr(tensor, "to_local")


def distribute(net: nn.Module, parallel: Parallel, world: World, precision: Arithmetic) -> Distribution:
    """Lay a network's weights out over the processes; each has the same to begin with."""
    if parallel == "ddp" or not world.is_launched:
        return Replicated(net, world)
    from torch.distributed.device_mesh import init_device_mesh

    kind, inside = world.device.type, world.size_of_machine
    if parallel == "hsdp":
        mesh = init_device_mesh(kind, (world.size // inside, inside), mesh_dim_names=("copies", "pieces"))
    else:
        mesh = init_device_mesh(kind, (world.size,), mesh_dim_names=("pieces",))
    return Sharded(net, world, mesh, precision)
