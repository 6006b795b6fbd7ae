#!/usr/bin/env bash
# Makes what is released, then proves it: installed in a clean venv, it must run a sandbox.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:$HOME/.cargo/bin"
rm -rf dist
echo "[ship] building the sdist and the wheel"
.venv/bin/python -m hatchling build -d dist
wheel="$(ls dist/*.whl)"

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
echo "[ship] installing $wheel in a clean venv"
.venv/bin/python -m venv "$scratch/venv"
"$scratch/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"
# From another directory, so that nothing of the checkout can help.
(cd "$scratch" && venv/bin/cloister run -- true)

echo "[ship] writing the SBOM and the checksums"
.venv/bin/python scripts/sbom.py --site "$scratch/venv" --to dist/cloister.cdx.json
(cd dist && sha256sum -- *.whl *.tar.gz *.cdx.json >SHA256SUMS)
cat dist/SHA256SUMS
