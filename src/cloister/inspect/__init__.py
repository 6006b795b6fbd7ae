"""Inspect's sandbox provider: `sandbox="cloister"` in an Inspect task."""
