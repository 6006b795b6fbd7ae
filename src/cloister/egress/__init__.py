"""The gateway: a process of its own that every byte a sandbox sends or is sent goes through."""
