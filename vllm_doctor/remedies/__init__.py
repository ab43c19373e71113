"""Advice: which remedies of a finding fit this version and these flags, and with which value."""
