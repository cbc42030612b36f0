"""Models with patterns for programs without Asterism: as models of transformers' own classes, or as graphs.

    from asterism.models import export_graph, export_native
    export_native("llama-folder", "mistral-folder", pattern="window(left=1023)")
    export_graph("llama-folder", "llama.onnx", length=512, pattern="window(left=127)")

`export.py` leads through the export; `families.py` says which configurations hold which windows; `check.py` compares
the result with the model, in a process without Asterism (`alone.py`). `graph.py` writes files of ONNX and torch.export.
"""

from asterism.models.exporting.export import Exported, export_native
from asterism.models.exporting.graph import ExportedGraph, export_graph

__all__ = ["Exported", "ExportedGraph", "export_graph", "export_native"]
