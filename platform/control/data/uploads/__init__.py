"""Uploads: a file is sent in parts, each of which can be sent again."""
