"""Uploads: a file sent in parts, which may be sent again one by one."""
