"""How far a network and an attention can differ: the certificate and what it stands on."""
