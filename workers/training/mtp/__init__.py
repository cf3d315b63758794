"""Training of multi-token-prediction (MTP) modules. The trained module is `engine.drafters.mtp_model`, which is served.

Batches and loss are those of EAGLE-3, because both kinds read position t together with token t + 1, predict token
t + 2, and run on their own output.
"""
