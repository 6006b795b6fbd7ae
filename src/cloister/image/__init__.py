"""Images: where they come from, what they say of themselves, and which are here."""

from __future__ import annotations

from cloister.image.arrival import Unpack
from cloister.image.config import ImageConfig, parse_config
from cloister.image.facts import LayerFacts
from cloister.image.image import Image
from cloister.image.layout_writer import LayoutWriter
from cloister.image.library import Library
from cloister.image.opening import open_source
from cloister.image.progress import OnProgress, Progress, Stage
from cloister.image.reference import Reference, parse_image_name, parse_reference
from cloister.image.source import LayerSource, Resolved, Source

__all__ = [
    "Image",
    "ImageConfig",
    "LayerFacts",
    "LayerSource",
    "LayoutWriter",
    "Library",
    "OnProgress",
    "Progress",
    "Reference",
    "Resolved",
    "Source",
    "Stage",
    "Unpack",
    "open_source",
    "parse_config",
    "parse_image_name",
    "parse_reference",
]
