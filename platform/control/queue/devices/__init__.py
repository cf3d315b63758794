"""Devices of the machines that run jobs, and the jobs that hold them."""
