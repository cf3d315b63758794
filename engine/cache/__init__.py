"""The KV cache: its memory, its slots and its size."""
