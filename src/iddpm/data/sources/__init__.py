"""Sources of pictures: what each kind offers, listed, and how one of its pictures is read."""
