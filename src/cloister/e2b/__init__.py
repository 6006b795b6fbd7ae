"""The door for programs written for E2B: their SDKs, unmodified, work with sandboxes of ours."""
