"""The control plane: rows, services, API, gateway and admin. Never imports torch."""
