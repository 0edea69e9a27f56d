"""The one small exchange of a step: every process comes to know all examples' losses, and what each process asks of all."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from iddpm.diffusion.objective import Terms
from iddpm.runtime.world import World

__all__ = ["exchanged"]


@torch.no_grad()
def exchanged(
    terms: Sequence[Terms], batch_size: int, own: Float[Tensor, "numbers"], world: World
) -> tuple[list[Terms], Float[Tensor, "processes numbers"]]:
    """The terms of the global batch, detached, in the order of its examples, and some numbers of each process, a row each.

    What follows from them (the timestep sampler's history, whether a step is skipped, means in the journal) is then the
    same in all processes, and the same as one process alone would have found. It is one sum, queued on the device: nobody
    waits for it here. Of one process it is what was given.

    Args:
        terms: Of this process's micro-batches.
        batch_size: Images in the global batch.
        own: What this process adds; as many numbers in each.
        world: The processes.
    """
    if world.size == 1:
        return list(terms), own[None]
    names = ("loss", *terms[0].parts)
    columns = [torch.cat([{"loss": micro.loss, **micro.parts}[name].double() for micro in terms]) for name in names]
    has_t, has_weight = terms[0].t is not None, terms[0].weight is not None
    if has_t:
        columns.append(torch.cat([micro.t.double() for micro in terms if micro.t is not None]))
    if has_weight:
        columns.append(torch.cat([micro.weight.double() for micro in terms if micro.weight is not None]))
    # Each process fills its own places of a table of zeros: the sum is the table, to the bit.
    table = torch.zeros(len(columns) * batch_size + world.size * len(own), dtype=torch.float64, device=own.device)
    examples = table[: len(columns) * batch_size].view(len(columns), batch_size)
    numbers = table[examples.numel() :].view(world.size, len(own))
    examples[:, world.rows(batch_size)] = torch.stack(columns)
    numbers[world.rank] = own
    world.sum(table)
    values = examples.to(terms[0].loss.dtype)
    rest = len(names)
    whole = Terms(
        loss=values[0],
        parts=dict(zip(names[1:], values[1:], strict=False)),
        t=examples[rest].long() if has_t else None,
        weight=values[-1] if has_weight else None,
    )
    return [whole], numbers
