"""The command `slipstream` calls the API from a terminal, and, with `--json`, from scripts."""
