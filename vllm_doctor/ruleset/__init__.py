"""Loads and checks the YAML under rules/."""
