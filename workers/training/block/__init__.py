"""Block drafters: config, data, loss and method. The module itself is `engine.drafters.block_model`, as served."""
