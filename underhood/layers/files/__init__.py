"""Layers in files, and what a file holds in words."""
