"""Graph decoding: captured graphs draft, verify and commit on the device, and the host reads the results one step late.

One run of these graphs is a graph step. Each decoding sequence has a batch slot, which holds the sequence's
state on the device.
"""
