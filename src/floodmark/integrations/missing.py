"""An extra that is not installed, or too old: one line that says what to install."""

from __future__ import annotations

from importlib import metadata

from floodmark.model.errors import ConfigError


class Missing(ConfigError, ImportError):
    """A package that an integration needs; an ImportError, too, because it is raised by an import."""

    @classmethod
    def extra(cls, what: str, package: str, extra: str, least: str, error: ImportError) -> Missing:
        """`what` needs `least`, which the extra brings; the error says what could not be imported."""
        hint = f"pip install 'floodmark[{extra}]'"
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            return cls(f"{what} needs {least} or newer, which is not installed", hint=hint)
        return cls(f"{what} needs {least} or newer, and {version} is installed ({error})", hint=hint)

    def __str__(self) -> str:
        return f"{self.message}: {self.hint}"
