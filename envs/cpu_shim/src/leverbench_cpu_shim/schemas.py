"""Schemas of torchvision operators, for a torchvision whose own operators did not load."""

import torch

# torchvision registers shape functions for these two at import even where its native library
# did not load, and torch refuses a shape function of an operator it does not know. The other
# operators are registered only where the library loaded.
_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}

# torch forgets the definitions when this object is collected.
_library = torch.library.Library("torchvision", "FRAGMENT")


def define() -> None:
    """Defines the operators without an implementation: calling one still fails."""
    for name, schema in _SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            _library.define(schema)
