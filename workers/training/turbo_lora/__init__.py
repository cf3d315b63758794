"""A LoRA adapter of the target's last layers and Medusa heads, which are trained together.

The result is one folder with peft's adapter files and the heads. Like every adapter, it changes the model's answers;
the heads draft for the adapted model and do not change its answers.
"""
