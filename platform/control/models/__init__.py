"""Base models, speculators and LoRA adapters: their tables and the checks of their folders."""
