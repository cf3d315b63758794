"""What /version says: the project's, as pyproject.toml has it."""

VERSION = "0.1.0"
