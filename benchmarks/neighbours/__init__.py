"""Measures how much one organization can slow down another one."""
