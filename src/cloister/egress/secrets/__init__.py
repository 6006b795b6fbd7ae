"""Secrets on their way out and back: placeholders replaced where they belong, values taken out."""
