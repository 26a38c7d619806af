"""Experiments of our own, one file each; the paper claims nothing about them."""
