"""What a server is asked for: the words of `Sandbox(...)` as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cloister.model import Environment, Limits
from cloister.policy import Egress, ImageRoot, Policy

FIELDS = ("profile", "trust", "runtime", "require", "storage", "history", "ledger")


def spec_of(whole: Policy, policy: Policy | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the server is asked for: the whole policy, or what changes of another's."""
    spec: dict[str, Any] = {
        name: settings[name]
        for name in ("keep", "label", "template")
        if settings.get(name) is not None
    }
    if policy is not None or not ("keep" in spec or "template" in spec or _is_plain(settings)):
        tables = whole.as_dict()
        tables["mount"] = [each for each in tables["mount"] if each["mode"] != "copy"]
        if not whole.storage_is_stated:
            del tables["storage"]
        usual = Policy().as_dict()
        tables["limits"] = _named(whole.limits)
        # What is as usual is not said: some of it is not for every client to say.
        spec["policy"] = {
            key: value
            for key, value in tables.items()
            if value != usual.get(key) and value not in ([], {})
        }
        return spec
    for name in FIELDS:
        if settings.get(name) is not None:
            spec[name] = str(getattr(settings[name], "value", settings[name]))
    if settings.get("limits") is not None:
        spec["limits"] = _named(settings["limits"])
    if settings.get("env") is not None:
        spec["env"] = dict(Environment(settings["env"]))
    image = settings.get("image")
    if isinstance(settings.get("root"), ImageRoot):
        image = settings["root"].reference
    if image is not None:
        spec["image"] = image
    if settings.get("egress") is not None:
        spec["egress"] = egress_table(settings["egress"])
    if settings.get("volumes") is not None:
        mounts = whole.volumes
        spec["volumes"] = [f"{each.name}:{each.target}:{each.mode.value}" for each in mounts]
    return spec


def _named(limits: Limits) -> dict[str, Any]:
    """Return the limits that are not as usual."""
    usual = Limits().as_dict()
    return {key: value for key, value in limits.as_dict().items() if value != usual[key]}


def _is_plain(settings: Mapping[str, Any]) -> bool:
    """Whether nothing was asked for that only a whole policy can say."""
    return not any(settings.get(name) is not None for name in ("mounts", "root", "secrets"))


def egress_table(egress: Egress | Sequence[str]) -> list[str] | dict[str, Any]:
    """Return a way out as a server is told of it: hosts, or all that a policy file has of it."""
    if not isinstance(egress, Egress):
        return [str(each) for each in egress]
    # What is as usual is not said: some of it is not for every client to say.
    table = {key: value for key, value in egress.as_dict().items() if value or key == "allow"}
    return [str(each) for each in table["allow"]] if set(table) == {"allow"} else table
