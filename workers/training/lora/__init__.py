"""Supervised fine-tuning: a LoRA adapter of the target learns the labels of a customer's file.

The result is a folder with the files that peft writes. Unlike a speculator, an adapter changes the model's answers.
"""
