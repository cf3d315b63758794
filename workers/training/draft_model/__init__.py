"""Draft models: the target with layers removed, trained by distillation. The loss is that of one EAGLE-3 step."""
