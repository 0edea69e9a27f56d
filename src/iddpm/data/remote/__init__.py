"""Files from the network: the well-known sets by name."""
