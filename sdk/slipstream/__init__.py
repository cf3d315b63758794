"""Client for the Slipstream API."""
