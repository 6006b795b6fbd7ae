"""Cloister beside its peers, on this machine, in one run."""
