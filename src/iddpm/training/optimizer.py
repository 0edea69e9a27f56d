"""The optimizer as a value of the config, and its state as plain tensors under the parameters' names."""

import torch
from jaxtyping import Float
from torch import Tensor

from iddpm.runtime.errors import RunError
from iddpm.training.distribution import Weights
from iddpm.training.settings import Adam, AdamW, Optimizer

__all__ = ["build_optimizer", "load_optimizer_tensors", "optimizer_tensors", "take_step"]


def build_optimizer(spec: Optimizer, module: Weights, lr: float) -> torch.optim.Optimizer:
    """The optimizer over all trainable parameters; fused where the device has the kernel."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters)
    match spec:
        case Adam(beta1=beta1, beta2=beta2, eps=eps):
            return torch.optim.Adam(parameters, lr=lr, betas=(beta1, beta2), eps=eps, fused=fused)
        case AdamW(beta1=beta1, beta2=beta2, eps=eps, weight_decay=decay):
            return torch.optim.AdamW(parameters, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay, fused=fused)


@torch.no_grad()
def take_step(
    optimizer: torch.optim.Optimizer, lr: float, divisor: Float[Tensor, ""] | None, skip: Float[Tensor, ""]
) -> None:
    """One step with the gradients divided by `divisor`; where `skip` is 1, none, and no state moves.

    Fused kernels take both numbers from the device, as torch's own gradient scaler hands them over: dividing costs no
    pass over the gradients, and nobody waits for `skip`. Gradients are gone afterwards.
    """
    for group in optimizer.param_groups:
        group["lr"] = lr
    if optimizer.defaults["fused"]:
        optimizer.grad_scale, optimizer.found_inf = divisor, skip  # type: ignore[attr-defined]
        optimizer.step()
    elif not bool(skip):
        if divisor is not None:
            grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            torch._foreach_div_(grads, divisor)
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def optimizer_tensors(optimizer: torch.optim.Optimizer, module: Weights) -> dict[str, Tensor]:
    """The optimizer's state, as "<parameter name>/<entry>"."""
    return {
        f"{name}/{entry}": value
        for name, parameter in module.named_parameters()
        for entry, value in optimizer.state[parameter].items()
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, module: Weights, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave.

    Raises:
        RunError: The state is of another module.
    """
    if not tensors:  # saved before the first step
        optimizer.state.clear()
        return
    for name, parameter in module.named_parameters():
        entries = {key.rpartition("/")[2]: value for key, value in tensors.items() if key.rpartition("/")[0] == name}
        moments = [value for entry, value in entries.items() if entry != "step"]
        if not moments or any(value.shape != parameter.shape for value in moments):
            raise RunError(
                f"the checkpoint's optimizer state does not fit the parameter {name}",
                "start a new run directory",
            )
        optimizer.state[parameter] = {
            entry: value.to(parameter.device) if entry == "step" else _laid_out_as(parameter, value)
            for entry, value in entries.items()
        }


def _laid_out_as(parameter: Tensor, value: Tensor) -> Tensor:
    # Fused kernels walk parameter and moments by the same offsets: the moments must lie as the parameter does.
    return torch.empty_like(parameter, memory_format=torch.preserve_format, requires_grad=False).copy_(value)
