"""How much of any layer is attention."""
