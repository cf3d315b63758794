"""One model on several processes, with the bits of one process."""
