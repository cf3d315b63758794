"""Tensor parallelism: one model runs on several processes, with the same bits as on one process."""
