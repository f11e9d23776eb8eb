"""Build hook: the catalogues are compiled whenever the package is built or installed, an editable one too."""

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledMessages(BuildHookInterface):  # type: ignore[type-arg]  # its configuration is not asked for
    """Puts ``kvscope.mo`` of every language beside its sources, and into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before each build."""
        root = Path(self.root)
        spec = importlib.util.spec_from_file_location("compile_messages", root / "tools" / "compile_messages.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        build_data["artifacts"] += [path.relative_to(root).as_posix() for path in module.compile_all(root)]
