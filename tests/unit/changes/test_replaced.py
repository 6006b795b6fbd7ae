"""Whose fault it is that a path cannot be read: the sandbox's that replaced it, or the host's."""

from __future__ import annotations

import errno
import os

import pytest

from cloister.errors import CloisterError, GuestError, HostError
from cloister.store.changes.scan import reading


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, GuestError),
        (errno.ELOOP, GuestError),
        (errno.ENOTDIR, GuestError),
        (errno.EINVAL, GuestError),
        (errno.EIO, HostError),
        (errno.EMFILE, HostError),
    ],
)
def test_a_path_that_was_replaced_is_no_trouble_of_the_host(
    number: int, kind: type[CloisterError]
) -> None:
    with pytest.raises(kind, match=r"/odd\\x1bname"), reading(b"/odd\x1bname"):
        raise OSError(number, os.strerror(number))
