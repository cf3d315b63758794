"""Constrained decoding: grammars, their compiler, and the trial of untrusted grammars."""
