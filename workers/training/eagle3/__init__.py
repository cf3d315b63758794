"""EAGLE-3: config, data, unroll, loss and method. The module itself is `engine.drafters.eagle3_module`, as served."""
