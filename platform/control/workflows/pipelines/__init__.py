"""A pipeline distils, trains, evaluates, gates and deploys a speculator. Interrupted stages can be resumed."""
