"""Settings come from a file, the environment and options; what is not known is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloister.errors import RequestError
from cloister.server.settings import load_settings, setting_names
from cloister.server.tenancy import TenantName


def test_the_environment_changes_the_file_and_options_change_both(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('listen = "127.0.0.1:1"\nqueue_s = "5s"\nmost_sandboxes = 7\n')
    environment = {"CLOISTER_SERVER_QUEUE_S": "7s", "CLOISTER_SERVER_LISTEN": "127.0.0.1:2"}
    settings = load_settings(file, environment, listen="127.0.0.1:3")
    assert (settings.listen, settings.queue_s) == ("127.0.0.1:3", 7.0)
    assert settings.most_sandboxes == 7


def test_a_tenant_has_what_its_table_says_and_the_rest_of_the_common_one(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('[quota]\nsandboxes = 5\n[tenants.acme]\nmemory = "1GiB"\n')
    settings = load_settings(file, {})
    acme = settings.quota_of(TenantName("acme"))
    assert (acme.sandboxes, acme.memory_bytes) == (5, 2**30)
    assert settings.quota_of(TenantName("other")).sandboxes == 5


@pytest.mark.parametrize(
    "text",
    [
        'lisen = "x:1"',
        "queue_s = 0",
        "most_sandboxes = 0",
        'listen = "nowhere"',
        "[quota]\nsandboxs = 1",
        "[tenants.A]\nsandboxes = 1",
        "unlimited_disk = 1.5",
        'certificate = "/x"',
        "not toml",
    ],
)
def test_what_is_wrong_or_unknown_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "server.toml"
    file.write_text(text)
    with pytest.raises(RequestError):
        load_settings(file, {})


def test_an_unknown_variable_is_refused() -> None:
    with pytest.raises(RequestError, match="most_sandboxes"):
        load_settings(None, {"CLOISTER_SERVER_MOST_SANDBOX": "1"})


def test_every_setting_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "server.md").read_text()
    assert [name for name in setting_names() if f"`{name}`" not in text] == []
