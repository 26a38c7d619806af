"""How weights are found: recipes, ensembles, storage and resume."""
