"""Interception: TLS opened with a certificate of the sandbox's own, each request judged alone."""
