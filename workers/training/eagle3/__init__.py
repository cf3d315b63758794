"""Training of EAGLE-3 drafters. The trained module is `engine.drafters.eagle3_module`, which is also served."""
