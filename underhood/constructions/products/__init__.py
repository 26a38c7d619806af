"""Products of two signals, prepared for layers with sigmoids."""
