"""Secrets in a policy: where they come from and may go, and never what they are."""

from __future__ import annotations

from typing import Any

import pytest

from cloister.errors import PolicyError, RequestError
from cloister.policy import Place, Policy, SecretBinding, Source, parse_policy, read_policy

EGRESS = '[egress]\nallow = ["api.example.org"]\n'
USUAL: dict[str, Any] = {
    "from": "env:TOKEN",
    "hosts": ["api.example.org"],
    "header": "Authorization",
}


def bound(**changes: Any) -> SecretBinding:
    table = {**USUAL, **changes}
    return SecretBinding("TOKEN", **{key: value for key, value in table.items() if value != ""})


def test_a_secret_is_bound_to_its_hosts_and_place() -> None:
    secret = bound(hosts=["api.example.org", "Other.example.org:8443"])
    assert (secret.source, secret.where) == (Source.ENV, "TOKEN")
    assert (secret.place, secret.at) == (Place.HEADER, "Authorization")
    assert secret.is_for("api.example.org", 443)
    assert secret.is_for("other.example.org", 8443)
    assert not secret.is_for("other.example.org", 443)
    assert not secret.is_for("a.api.example.org", 443)


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"from": "file:/run/token"},
        {"from": "command:print-token --for 'a b'"},
        {"from": "keyring:service/user"},
        {"from": "vault:secret/data/app#token", "header": "", "query": "key"},
        {"header": "", "basic_user": "git", "first_use": "ask"},
        {"from": "", "mint": ["make-token"], "revoke": ["drop-token"]},
    ],
)
def test_a_policy_with_secrets_is_the_same_after_it_was_written_down(table: dict[str, Any]) -> None:
    policy = Policy(egress=["api.example.org"], secrets=[bound(**table)])
    assert read_policy(policy.as_dict(), "record") == policy
    assert policy.needs_depth("api.example.org", 443)
    assert policy.has_depth


def test_a_command_is_its_words() -> None:
    assert bound(**{"from": "command:a 'b c'"}).argv == ("a", "b c")
    assert bound(**{"from": "", "mint": ["a", "b c"]}).argv == ("a", "b c")


@pytest.mark.parametrize(
    "table",
    [
        {"from": ""},
        {"from": "ghp_the_value_itself"},
        {"from": "env:"},
        {"mint": ["make"]},
        {"revoke": ["drop"]},
        {"hosts": []},
        {"hosts": ["*.example.org"]},
        {"hosts": "api.example.org"},
        {"header": ""},
        {"header": "Host"},
        {"header": "a b"},
        {"header": "a\r\nb"},
        {"query": "key"},
        {"first_use": "deny"},
        {"from": "command:'"},
        {"value": "x"},
    ],
)
def test_what_is_no_binding_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as raised:
        bound(**table)
    assert "the_value_itself" not in str(raised.value)


def test_a_host_of_a_secret_must_be_reachable() -> None:
    with pytest.raises(PolicyError) as raised:
        parse_policy(
            EGRESS + '[secrets.TOKEN]\nfrom = "env:T"\nhosts = ["b.example.org"]\nheader = "X"\n',
            "c.toml",
        )
    assert raised.value.place == "c.toml:5 secrets.TOKEN.hosts"
    with pytest.raises(PolicyError):
        Policy(secrets=[bound()])


def test_a_secret_is_no_variable_too() -> None:
    with pytest.raises(PolicyError, match="also in env"):
        Policy(egress=["api.example.org"], env={"TOKEN": "x"}, secrets=[bound()])


def test_a_value_written_instead_of_a_source_is_not_repeated() -> None:
    for text in ('[secrets]\nTOKEN = "hunter2"', '[secrets.TOKEN]\nfrom = "hunter2"'):
        with pytest.raises(PolicyError) as raised:
            parse_policy(EGRESS + text, "c.toml")
        assert "hunter2" not in str(raised.value)


def test_a_misspelt_key_of_a_secret_says_where_and_what_was_meant() -> None:
    with pytest.raises(PolicyError) as raised:
        parse_policy(EGRESS + '[secrets.TOKEN]\nfrom = "env:T"\nhost = ["a"]', "c.toml")
    assert raised.value.place == "c.toml:5 secrets.TOKEN.host"
