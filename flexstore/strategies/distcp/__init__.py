"""Paddle's flex checkpoint files, read without Paddle and without executing anything, and written for it to read.

`window` and `machine` walk a pickle stream, `payloads` finds the arrays of a data file, `metadata` reads Paddle's
``Metadata``, `chunks` joins the two into a manifest; `emit`, `data_file` and `metadata_file` write; `format` is the
strategy.
"""
