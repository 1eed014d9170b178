"""Kernels for CUDA tensors, in Triton, which comes with PyTorch.

`sorting` prepares entries, `systems` solves the small systems of rows, `passes` has the other loops
over entries, and `backend` is what `scaledgd.kernels` picks.
"""
