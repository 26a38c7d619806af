"""Experiments of our own; the paper claims nothing about them."""
