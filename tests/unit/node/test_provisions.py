"""What a sandbox whose requests are read is given, and what is never passed on with it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography import x509

from cloister.errors import NotFound
from cloister.node.provisions import provide, usual_places, write_files
from cloister.node.trust_store import host_bundle
from cloister.policy import DirectoryRoot, Egress, Policy
from cloister.runtime.ground import Ground, GroundDisk

BUNDLE = "etc/ssl/certs/ca-certificates.crt"
RULE = {"name": "r", "host": "*.a.test", "methods": ["GET"], "effect": "allow"}


def policy_on(root: Path) -> Policy:
    return Policy(root=DirectoryRoot(root))


def put(root: Path, path: str) -> Path:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("certificates")
    return place


def test_a_bundle_is_shown_where_the_root_has_one_and_no_link_leads_there(tmp_path: Path) -> None:
    plain, linked, parent, none = (
        tmp_path / name for name in ("plain", "linked", "parent", "none")
    )
    put(plain, BUNDLE)
    put(linked, "elsewhere")
    (linked / BUNDLE).parent.mkdir(parents=True)
    (linked / BUNDLE).symlink_to("/elsewhere")
    put(parent, "real/certs/ca-certificates.crt")
    (parent / "etc").mkdir()
    (parent / "etc/ssl").symlink_to("../real")
    none.mkdir()
    found = {
        root.name: list(usual_places(policy_on(root), Ground()))
        for root in (plain, linked, parent, none)
    }
    assert found == {"plain": [BUNDLE], "linked": [], "parent": [], "none": []}
    # What a sandbox has put in its place, on a disk that is kept, decides too.
    disk = tmp_path / "disk"
    (disk / BUNDLE).parent.mkdir(parents=True)
    (disk / BUNDLE).symlink_to("/x")
    ground = Ground(disk=GroundDisk(str(disk), (), durable=False))
    assert usual_places(policy_on(plain), ground) == {}


def test_of_a_file_of_certificates_nothing_else_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "company.pem"
    body = "QUJD\n" * 3
    file.write_text(
        f"# a company's\n-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n"
        f"-----BEGIN PRIVATE KEY-----\n{body}-----END PRIVATE KEY-----\n"
    )
    without = host_bundle()
    monkeypatch.setenv("CLOISTER_CA_FILE", str(file))
    added = host_bundle().removeprefix(without)
    assert added.count("BEGIN CERTIFICATE") == 1
    assert "PRIVATE" not in added
    monkeypatch.setenv("CLOISTER_CA_FILE", str(tmp_path / "none"))
    with pytest.raises(NotFound, match="cannot be read"):
        host_bundle()


async def test_the_authority_signs_for_the_hosts_of_the_rules_and_ends_with_the_sandbox(
    tmp_path: Path,
) -> None:
    assert await provide(Policy(egress=["a.test"]), "sb") is None
    given = await provide(Policy(egress=Egress((), (), [RULE])), "sb")
    assert given is not None
    certificate = x509.load_pem_x509_certificate(given.authority.certificate.encode())
    limits = certificate.extensions.get_extension_for_class(x509.NameConstraints)
    assert limits.critical
    assert [each.value for each in limits.value.permitted_subtrees or ()] == ["a.test"]
    lasts = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    # The usual lifetime is an hour, and clocks may differ.
    assert lasts.total_seconds() < 2 * 86_400
    assert given.authority.key not in repr(given)
    files = write_files(given, tmp_path / "x.json")
    for path in files.values():
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        assert b"PRIVATE KEY" not in path.read_bytes()
