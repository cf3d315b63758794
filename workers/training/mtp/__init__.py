"""Training of multi-token-prediction (MTP) modules. The trained module is `engine.drafters.mtp_model`, which is served.

Batches and loss are those of EAGLE-3. Drafters of both kinds read the hidden state of position t together with token
t + 1, predict token t + 2, and read their own output in the next step.
"""
