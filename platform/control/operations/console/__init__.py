"""The web console, for operators and for members of organizations."""
