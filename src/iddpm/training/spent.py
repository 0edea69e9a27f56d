"""What a run has cost so far, over all its sessions and with what was done twice."""

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Spent"]


@dataclass(kw_only=True)
class Spent:
    """Sums up to now. Images of steps that were skipped, or done again after going back, are in them.

    Attributes:
        flops_per_image: Of a forward and a backward pass, without what activation checkpointing computes twice.
        seconds: By the clock.
        device_seconds: The same, times the devices.
        images: Put through the network.
        flops: Of those images.
    """

    flops_per_image: float = 0.0
    seconds: float = 0.0
    device_seconds: float = 0.0
    images: int = 0
    flops: float = 0.0

    def add_images(self, images: int) -> None:
        """Count the images of one step."""
        self.images += images
        self.flops += images * self.flops_per_image

    def add_seconds(self, seconds: float, devices: int) -> None:
        """Count time that has passed on so many devices."""
        self.seconds += seconds
        self.device_seconds += seconds * devices

    def to_json(self) -> dict[str, Any]:
        """The sums, for the record."""
        sums = asdict(self)
        del sums["flops_per_image"]
        return {name: round(value, 3) for name, value in sums.items()}

    def load(self, sums: dict[str, Any]) -> None:
        """Go on from what `to_json` gave."""
        for name, value in sums.items():
            setattr(self, name, value)
