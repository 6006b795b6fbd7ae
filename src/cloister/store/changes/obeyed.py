"""Files that programs of the host run or obey without being asked: where an agent plants traps."""

from __future__ import annotations

import re

# Relative to the top of any project in the tree. Git runs what its configuration and its hooks say
# at the next `git status`; shells, editors and package managers do so when a directory is entered.
_OBEYED = re.compile(
    rb"(?:^|/)(?:"
    rb"\.git(?:/modules/.+)?/(?:hooks/.+|config|config\.worktree|info/attributes)"
    rb"|\.git"
    rb"|\.(?:githooks|husky|vscode|idea|devcontainer|claude|cursor)/.+"
    rb"|\.(?:envrc|bashrc|bash_profile|bash_login|profile|zshrc|zshenv|zprofile|npmrc|yarnrc"
    rb"|yarnrc\.yml|gitattributes|gitmodules|pre-commit-config\.yaml|mcp\.json)"
    rb"|mise\.toml|\.mise\.toml|sitecustomize\.py|conftest\.py"
    rb")$",
    re.IGNORECASE | re.DOTALL,
)


def is_obeyed_by_tools(path: bytes) -> bool:
    """Whether a path of a host tree is one of these; that it is not is no promise."""
    return _OBEYED.search(path) is not None
