"""Drafters that run entirely on the device."""
