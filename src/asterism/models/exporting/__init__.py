"""Models whose layers follow windows, as models of transformers' own classes.

    from asterism.models import export_native
    export_native("llama-folder", "mistral-folder", pattern="window(left=1023)")

`export.py` leads through the export; `families.py` says which configurations hold which windows; `check.py` compares
the result with the model, in a process without Asterism (`alone.py`).
"""

from asterism.models.exporting.export import Exported, export_native

__all__ = ["Exported", "export_native"]
