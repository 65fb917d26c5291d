"""The places for saving and loading trees: one configured file, and names in one folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentspec.errors import ForestFileError


@dataclass(frozen=True, slots=True)
class ForestFolder:
    """The files that a client of a running server may name.

    Attributes:
        file: default file; None = the client must name one.
        folder: folder of every other file, at any depth. None = the folder of ``file``; without either, no
            file may be named.
    """

    file: Path | None = None
    folder: Path | None = None

    def find(self, given: str | None) -> Path:
        """Return the path of a file. A relative path starts in the folder; symbolic links are followed.

        Raises:
            ForestFileError: no file or folder is configured, or the path is invalid or outside the folder.
        """
        if given is None:
            if self.file is None:
                raise ForestFileError(
                    "no forest file is configured: start the server with --forest-file FILE"
                )
            return self.file
        folder = self.folder or (self.file and self.file.absolute().parent)
        if folder is None:
            raise ForestFileError(
                f"{given!r} can't be used: no folder for forests is configured: start the server with "
                "--forest-folder DIR or --forest-file FILE"
            )
        root = folder.resolve()
        try:
            path = (root / given).resolve()
        except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a null byte
            raise ForestFileError(f"{given!r} is no path: {error}") from None
        if root not in path.parents:
            raise ForestFileError(f"{given!r} is outside of {str(folder)!r}, where forests are kept")
        return path
