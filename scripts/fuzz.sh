#!/usr/bin/env bash
# Property tests and the Rust fuzz loops with far more inputs than a test run takes.
# CLOISTER_FUZZ_EXAMPLES sets how many inputs each property gets.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:$HOME/.cargo/bin"
export CLOISTER_FUZZ_EXAMPLES="${CLOISTER_FUZZ_EXAMPLES:-20000}"
echo "[fuzz] $CLOISTER_FUZZ_EXAMPLES inputs for each Python property"
PYTHONPATH=scripts .venv/bin/python -m pytest -p fuzz_profile -m hypothesis --timeout=3600 tests "$@"
echo "[fuzz] the Rust decoders"
cd cell
cargo test --release --locked fuzz_ -- --ignored
