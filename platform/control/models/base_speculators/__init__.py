"""Base speculators: operators publish them, and every organization can deploy, evaluate and train from them."""
