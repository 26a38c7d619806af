"""Other libraries' layers: torch, transformers, flax."""
