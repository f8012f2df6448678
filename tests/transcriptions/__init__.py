"""The papers' pseudocode as plain loops over clients, in numpy: nothing of fedsys is used here.

Each is a generator: it yields the fields of all clients, [M, d] by name, after every step.
"""
