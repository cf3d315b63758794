"""Uploaded and produced files; the bytes live in storage."""
