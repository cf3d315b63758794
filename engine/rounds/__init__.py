"""Decoding in rounds: the device drafts, verifies and commits by itself, and the host reads what came of it later."""
