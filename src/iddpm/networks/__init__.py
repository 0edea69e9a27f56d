"""The networks: nn.Modules that know no diffusion."""
