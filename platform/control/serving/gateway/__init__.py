"""Routes chat and completions to the deployment that serves them."""
