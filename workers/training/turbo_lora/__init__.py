"""A LoRA adapter of the target and Medusa heads, trained jointly: model, loss and method; data is Medusa's.

Served as one folder: peft's adapter files beside the heads'. The adapter changes what the model says, as any does; the
heads draft for the model with the adapter, and change nothing.
"""
