"""Launchers start, watch and end the engines of replicas, on this machine (`process`) or a Ray cluster (`ray`)."""
