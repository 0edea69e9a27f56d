"""Data: sources of pictures, the prepared store, the loader, and conversion to and from model space."""
