"""From a network back to attention, with a certificate."""
