"""Archives of picture files, read without unpacking them."""
