"""Graph decoding: captured graphs draft, verify and commit on the device, and the host reads the results one step late.

One pass through these graphs is a graph step. Each sequence in it occupies a batch slot on the device.
"""
