"""Import hooks that let the serving engine run on a CPU without its native kernels.

A ``.pth`` file imports this module at the start of every interpreter of the environment. So it
imports nothing but ``sys`` (and has no type hints, which would), puts two finders into
``sys.meta_path``, and leaves all work to the imports concerned. That happens once, also where
``site`` reads the file twice.
"""

import sys


class _TorchvisionHook:
    """Runs `schemas.define` right after ``torchvision.extension``, if its operators are missing."""

    def find_spec(self, name, path=None, target=None):
        if name != "torchvision.extension":
            return None
        from importlib.util import find_spec

        # Out of the way first: the search below must reach the module's own finder.
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None:
            spec.loader = _ThenDefineSchemas(spec.loader)
        return spec


class _ThenDefineSchemas:
    """The loader of ``torchvision.extension``, followed by a look at what it loaded."""

    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        # The module keeps no trace of the hook.
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        if not module._has_ops():
            from leverbench_cpu_shim import schemas

            schemas.define()


class _KernelStubFinder:
    """Offers the stub for ``sgl_kernel`` and its submodules."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "sgl_kernel":
            return None
        from leverbench_cpu_shim import stub

        return stub.find_spec(name)


sys.meta_path.insert(0, _TorchvisionHook())
# Last, so that a real kernel package found by any other finder wins.
sys.meta_path.append(_KernelStubFinder())
