"""A LoRA adapter of the target's last layers and Medusa heads, trained jointly: model, data and method.

The result is one folder with peft's adapter files and the heads. The adapter changes the answers of the model, as every
adapter does; the heads draft for the adapted model and change no answer.
"""
