"""Trees of picture files: what is used, which folder says what, and labels from tables."""
