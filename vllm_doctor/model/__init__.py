"""All value types of the product. Imports nothing of ours: every other layer may import this one."""
