"""Which variables an instruction sees: arguments of the build, and what ENV has set before."""

from __future__ import annotations

from collections.abc import Mapping

from cloister.build.dockerfile import Statement
from cloister.build.instructions import Arg
from cloister.build.words import expand, expand_variables
from cloister.errors import RequestError

NO_VARIABLES: Mapping[str, str] = {}


class Scope:
    """The arguments of one stage; `outer` are those before the first FROM, `given` the caller's."""

    def __init__(self, escape: str, outer: Mapping[str, str], given: Mapping[str, str]) -> None:
        self._escape = escape
        self._outer = outer
        self._given = given
        self.arguments: dict[str, str] = {}

    def declare(
        self, instruction: Arg, values: dict[str, str], env: Mapping[str, str] = NO_VARIABLES
    ) -> None:
        """Take an ARG: the caller's value, or the outer one, or its default, or none."""
        for name, default in instruction.variables:
            if name in self._given:
                values[name] = self._given[name]
            elif default is not None:
                values[name] = self.expand(instruction.at, default, {**values, **env})
            elif name in self._outer:
                values[name] = self._outer[name]

    def of(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return all variables; those of ENV go before arguments."""
        return {**self.arguments, **env}

    def expand(self, at: Statement, text: str, variables: Mapping[str, str]) -> str:
        """Return a word with its variables replaced and its quotes taken off."""
        try:
            return expand(text, variables, self._escape)
        except RequestError as error:
            raise at.wrong(str(error)) from error

    def fill(self, at: Statement, text: str, variables: Mapping[str, str]) -> str:
        """Return a document with its variables replaced."""
        try:
            return expand_variables(text, variables, self._escape)
        except RequestError as error:
            raise at.wrong(str(error)) from error
