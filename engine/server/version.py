"""The version that /version returns, equal to the version in pyproject.toml."""

VERSION = "0.1.0"
