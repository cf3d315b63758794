"""The control plane: database models, services, API, gateway and console. It never imports torch."""
