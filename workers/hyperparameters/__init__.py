"""What each kind of speculator can be told about its training: names, types, ranges, defaults. Standard library only.

Both sides read it: the API refuses a wrong value before anything is computed, the trainer takes what it was sent.
"""
