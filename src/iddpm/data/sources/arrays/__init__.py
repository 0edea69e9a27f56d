"""Pictures as raw arrays: npz, and the formats of the well-known sets."""
