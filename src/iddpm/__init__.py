"""Improved DDPM (Nichol and Dhariwal 2021), whole, with compute as a first-class result."""

__version__ = "0.1.0"
