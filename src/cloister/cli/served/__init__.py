"""The commands where CLOISTER_URL names a server: the same options, about what is there."""
