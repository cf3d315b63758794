"""The command `slipstream`: the API from a terminal, and, with `--json`, from scripts."""
