"""Draft models: the target with layers removed, distilled: model, data, method; EAGLE-3's loss, at one depth."""
