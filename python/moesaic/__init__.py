"""Companions of the Moesaic trainer: python -m moesaic.tokenize."""
