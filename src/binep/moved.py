"""Where modules have moved: their paths of version 0.1 still work, with a warning."""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "binep.bench": "binep.studies.bench",
    "binep.checkpoints": "binep.training.checkpoints",
    "binep.choices": "binep.studies.compare",
    "binep.couplings": "binep.core.couplings",
    "binep.dynamics": "binep.core.dynamics",
    "binep.figures": "binep.report.figures",
    "binep.gradcheck": "binep.studies.gradcheck",
    "binep.gradients": "binep.core.gradients",
    "binep.hardware.imperfect": "binep.core.imperfect",
    "binep.metrics": "binep.core.metrics",
    "binep.network": "binep.core.network",
    "binep.neurons": "binep.core.neurons",
    "binep.optim": "binep.core.optim",
    "binep.overview": "binep.studies.results_page",
    "binep.recipe": "binep.training.recipe",
    "binep.relaxation": "binep.core.relaxation",
    "binep.reproduce": "binep.studies.reproduce",
    "binep.results": "binep.studies.evidence",
    "binep.runs": "binep.training.runs",
    "binep.tune": "binep.studies.tune",
    "binep.watching": "binep.training.progress",
    "binep.weights": "binep.core.weights",
}


class _Moved(MetaPathFinder, Loader):
    """Finds a module under its old path and hands out the one under the new path."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = MOVED[spec.name]
        warnings.warn(f"{spec.name} is now {new}", DeprecationWarning, stacklevel=2)
        module = import_module(new)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has given the module the spec of its old name.
        module.__spec__ = self._spec


def forward_old_paths() -> None:
    """Let `import binep.recipe` and the like find what they named in version 0.1."""
    sys.meta_path.append(_Moved())
