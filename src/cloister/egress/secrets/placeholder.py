"""What the guest sees instead of a secret: of the same shape, so that programs take it for one."""

from __future__ import annotations

import re
import secrets
import string

# Kept, because programs look at them to know what kind of key they have.
_KNOWN = re.compile(
    r"(?:github_pat_|gh[opsur]_|glpat-|sk-ant-(?:api\d\d-)?|sk-proj-|sk-|[prs]k_(?:live|test)_"
    r"|xox[abeprs]-|AKIA|ASIA|AIza|ya29\.|hf_|npm_|pypi-|dop_v1_|SG\.|eyJ|hvs\.|s\.|shpat_)"
)
_HEX_LOWER, _HEX_UPPER = "0123456789abcdef", "0123456789ABCDEF"
# Fewer that are free to choose, and it could be guessed, or be in something by chance.
_LEAST_FREE = 8


def placeholder_for(value: str) -> str:
    """Return another text of the same length with the same kinds of characters."""
    known = _KNOWN.match(value)
    kept = 0 if known is None else known.end()
    while True:
        made = value[:kept] + _alike(value[kept:])
        if made != value and (len(value) - kept >= _LEAST_FREE or kept == 0):
            return made
        kept = 0


def _alike(value: str) -> str:
    hexadecimal = next((each for each in (_HEX_LOWER, _HEX_UPPER) if set(value) <= set(each)), None)
    free = sum(each in string.ascii_letters + string.digits for each in value)
    if free < _LEAST_FREE:
        return "".join(secrets.choice(string.ascii_letters) for _ in value)
    return "".join(_one(each, hexadecimal) for each in value)


def _one(character: str, hexadecimal: str | None) -> str:
    if hexadecimal is not None:
        return secrets.choice(hexadecimal)
    for kind in (string.ascii_lowercase, string.ascii_uppercase, string.digits):
        if character in kind:
            return secrets.choice(kind)
    # What separates parts: dots, dashes, underscores.
    return character
