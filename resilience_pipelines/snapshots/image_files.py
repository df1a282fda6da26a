"""Reading and replacing one of CRIU's image files through pycriu.

What belongs here: that a damaged one is an error that can be told, and that another link to a file
is never written through. What does not: what is in it (`criu`, `zero_pages`, `image_edits`).
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from resilience_pipelines.errors import CorruptError


def load_image(path: Path, pycriu: ModuleType) -> dict[str, Any]:
    """The content of an image file.

    Raises:
        CorruptError: it is none that this pycriu can read.
        OSError: it can't be read at all.
    """
    try:
        with path.open("rb") as stream:
            image = pycriu.images.load(stream)
    except OSError:
        raise
    except Exception as error:  # pycriu raises plain exceptions, protobuf and struct their own
        raise CorruptError(f"{path} is no image of CRIU ({error!r}).") from error
    if not isinstance(image, dict) or not isinstance(image.get("entries"), list):
        raise CorruptError(f"{path} is an image of CRIU without entries.")
    return image


def replace_image(path: Path, image: dict[str, Any], pycriu: ModuleType) -> None:
    """Put a file of this content in the place of another one.

    Raises:
        OSError: it can't be written.
    """
    new = path.with_suffix(".new")
    with new.open("xb") as stream:
        new.chmod(0o600)
        pycriu.images.dump(image, stream)
    new.replace(path)
