"""One module for each kind of speculator: how its artifact is recognised, checked and written."""
