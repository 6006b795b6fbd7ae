"""Images: where they come from, what they say of themselves, and which are here."""
