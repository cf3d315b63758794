"""The pages of the console: one admin class per table. `admin.py` imports every module of this folder."""
