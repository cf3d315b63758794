"""Multi-token-prediction modules: unroll and method. The module itself is `engine.drafters.mtp_model`, as served.

Batches and loss are EAGLE-3's: both read position t with token t + 1, guess token t + 2 and go on from their output.
"""
