"""Stateful code: kernels that run inside a sandbox, and the endpoints that reach them."""
