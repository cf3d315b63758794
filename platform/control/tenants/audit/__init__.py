"""The audit log: one immutable event for every change that an API key or an operator requested."""
