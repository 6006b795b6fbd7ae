"""Makes images: layers are unpacked, and steps are run, inside sandboxes."""

from __future__ import annotations

from cloister.build.pulling import pull_image
from cloister.build.unpacking import LayerLimits, unpack_layer

__all__ = ["LayerLimits", "pull_image", "unpack_layer"]
