"""Start, watch and end the engines of replicas: on this machine (`process`), or on a Ray cluster (`ray`)."""
