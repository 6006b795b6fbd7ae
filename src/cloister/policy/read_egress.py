"""Read [egress], its rules and its budget from the tables of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloister.policy.budget import BUDGET_KEYS, Budget
from cloister.policy.egress import Egress, require_reached
from cloister.policy.egress_rules import RULE_PARSERS, EgressRule
from cloister.policy.networks import parse_network
from cloister.policy.places import Places

EGRESS_KEYS = ("allow", "private", "rule", "budget", "networks", "without")
EGRESS_SCHEMA = (
    *("egress.allow", "egress.private", "egress.networks", "egress.without"),
    *(f"egress.rule.{key}" for key in RULE_PARSERS),
    *(f"egress.budget.{key}" for key in BUDGET_KEYS),
)


def read_egress(places: Places, table: Mapping[str, Any]) -> Egress:
    """Return what the table says may be reached."""
    places.refuse_unknown(("egress",), table, EGRESS_KEYS)
    # Rules and networks say by themselves what may be reached; without any, nothing said is a slip.
    allow = table.get("allow", []) if "rule" in table or "networks" in table else None
    if allow is None:
        allow = places.required(("egress",), table, "allow")
    for index, host in enumerate(allow if isinstance(allow, list) else ()):
        with places.at(("egress", "allow", index)):
            Egress([host])
    for key in ("networks", "without"):
        for index, network in enumerate(table.get(key, ())):
            with places.at(("egress", key, index)):
                parse_network(network, f"egress.{key}")
    rules = _read_rules(places, table.get("rule", []))
    budget = _read_budget(places, table)
    with places.at(("egress", "private" if "private" in table else "allow")):
        return Egress(
            allow,
            table.get("private", []),
            rules,
            budget,
            table.get("networks", []),
            table.get("without", []),
        )


def _read_rules(places: Places, tables: object) -> list[EgressRule]:
    if not isinstance(tables, list):
        raise places.error(("egress", "rule"), "rule is no list of tables; write [[egress.rule]]")
    rules: list[EgressRule] = []
    for index, table in enumerate(tables):
        path = ("egress", "rule", index)
        if not isinstance(table, dict):
            raise places.error(path, "a rule that is no table; write [[egress.rule]]")
        places.refuse_unknown(path, table, RULE_PARSERS)
        for key, value in table.items():
            with places.at((*path, key)):
                RULE_PARSERS[key](value)
        with places.at(path):
            rule = EgressRule.from_table(table)
            require_reached(rules, rule)
        rules.append(rule)
    return rules


def _read_budget(places: Places, egress: Mapping[str, Any]) -> Budget | None:
    if "budget" not in egress:
        return None
    path = ("egress", "budget")
    table = places.table(("egress",), egress, "budget")
    places.refuse_unknown(path, table, BUDGET_KEYS)
    for key, value in table.items():
        with places.at((*path, key)):
            Budget(**{key: value})
    return Budget(**table)
