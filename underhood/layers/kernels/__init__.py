"""Kernels for NVIDIA GPUs: layers over many sequences in a few launches, with their gradients."""
