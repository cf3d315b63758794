"""Training of block drafters. The trained module is `engine.drafters.block_model`, which is also served."""
