"""Write a CycloneDX list of every Python distribution and Rust crate that ships with cloister."""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# pip comes with every venv and is not installed by the wheel.
OF_THE_VENV = {"pip", "setuptools", "wheel"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", type=Path, required=True, help="a venv holding only the wheel")
    parser.add_argument("--to", type=Path, required=True)
    arguments = parser.parse_args()
    installed = list(python_distributions(arguments.site))
    cloister = next((found for found in installed if found.name == "cloister"), None)
    if cloister is None:
        print(f"sbom: cloister is not installed in {arguments.site}", file=sys.stderr)
        return 1
    others = [found for found in installed if found is not cloister]
    components = [python_component(found) for found in others] + list(rust_components())
    components.sort(key=lambda component: str(component["purl"]))
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "component": python_component(cloister) | {"type": "application"},
        },
        "components": components,
    }
    arguments.to.write_text(json.dumps(bill, indent=2) + "\n")
    return 0


def python_distributions(venv: Path) -> Iterator[Distribution]:
    site = [str(path) for path in venv.glob("lib/python3*/site-packages")]
    for found in distributions(path=site):
        if found.name.lower() not in OF_THE_VENV:
            yield found


def python_component(found: Distribution) -> dict[str, Any]:
    described = found.metadata.json
    licence = described.get("license_expression") or described.get("license")
    return component("pypi", found.name.lower(), found.version, str(licence or ""))


def rust_components() -> Iterator[dict[str, Any]]:
    """The crates linked into the binary; what only its tests need is left out."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    answer = subprocess.run(command, cwd=ROOT / "cell", check=True, stdout=subprocess.PIPE)
    metadata = json.loads(answer.stdout)
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    linked: set[str] = set()
    waiting = [metadata["resolve"]["root"]]
    while waiting:
        identity = waiting.pop()
        if identity in linked:
            continue
        linked.add(identity)
        waiting += [
            dependency["pkg"]
            for dependency in nodes[identity]["deps"]
            if any(kind["kind"] != "dev" for kind in dependency["dep_kinds"])
        ]
    for package in metadata["packages"]:
        if package["id"] in linked:
            yield component("cargo", package["name"], package["version"], package["license"] or "")


def component(kind: str, name: str, version: str, licence: str) -> dict[str, Any]:
    described: dict[str, Any] = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:{kind}/{name}@{version}",
    }
    if licence:
        described["licenses"] = [{"license": {"name": licence}}]
    return described


if __name__ == "__main__":
    sys.exit(main())
