"""Training of multi-token-prediction modules. The module itself is `engine.drafters.mtp_model`, as served.

Batches and loss are those of EAGLE-3, because both kinds read position t together with token t + 1, predict token
t + 2, and run on their own output.
"""
