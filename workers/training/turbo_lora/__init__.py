"""A LoRA adapter of the target's last layers and Medusa heads, trained jointly: model, data and method.

Served as one folder: peft's adapter files beside the heads'. The adapter changes what the model says, as any does; the
heads draft for the model with the adapter, and change nothing.
"""
