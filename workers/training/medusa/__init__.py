"""Training of Medusa heads. The trained module is `engine.drafters.medusa_heads`, which is also served."""
