"""Attention into the recurrent layers of today."""
