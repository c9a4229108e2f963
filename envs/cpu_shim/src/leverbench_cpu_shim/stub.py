"""A stand-in for the ``sgl_kernel`` package: every name can be imported, none can be used.

It registers no torch operator, so the engine sees that its own CPU kernels (AMX ones included)
are absent and takes its plain torch code instead.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType


class Operation:
    """A name imported from the stub; using it as a function or as a flag raises."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<missing operation {self._name}>"

    def __getattr__(self, attribute: str) -> "Operation":
        return _missing_name(self._name, attribute)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Raises NotImplementedError, which names the operation and the cure."""
        raise self._error()

    def __bool__(self) -> bool:
        # A flag of the real package read as true would switch on a path that needs it.
        raise self._error()

    def _error(self) -> NotImplementedError:
        return NotImplementedError(
            f"{self._name} is not available: it is a native kernel of the serving engine, and "
            "this environment has only the stub of leverbench-cpu-shim in the place of the "
            "sgl_kernel package. This variant needs a real kernel build: install one, or remove "
            "the lever that asks for this operation."
        )


def _missing_name(owner: str, name: str) -> Operation:
    # Python probes for dunder names by itself and must be told that there are none.
    if name.startswith("__"):
        raise AttributeError(name)
    return Operation(f"{owner}.{name}")


class _StubModule(ModuleType):
    def __getattr__(self, name: str) -> Operation:
        return _missing_name(self.__name__, name)


class _Loader:
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def find_spec(name: str) -> ModuleSpec | None:
    """Returns the spec of a stub package; None for what a real package is only lacking."""
    parent = name.rpartition(".")[0]
    if parent and not isinstance(sys.modules.get(parent), _StubModule):
        return None
    return ModuleSpec(name, _Loader(), origin="leverbench-cpu-shim", is_package=True)
