"""Training of draft models, which are the target with most layers removed. The loss is `step_loss` of EAGLE-3."""
