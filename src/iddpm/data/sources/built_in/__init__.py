"""Sets that come with the project or its packages."""
