"""Training of a LoRA adapter on the target's last layers, together with Medusa heads.

The result is one folder with peft's adapter files and the heads. Like every LoRA adapter, this one changes the model's
answers. The heads draft for the adapted model and do not change its answers.
"""
