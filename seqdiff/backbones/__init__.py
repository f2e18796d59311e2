"""Networks that emit K logits a position, behind one protocol."""

from .caduceus import Caduceus
from .protocol import Backbone, LabelledBackbone

__all__ = ["Backbone", "Caduceus", "LabelledBackbone"]
