"""Turns a Case into signals: named scalars with a unit over (run, engine, window), or a reason why they are unknown."""
