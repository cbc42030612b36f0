"""Runs an exported graph without Asterism, and writes its logits: the other half of `graph.py`.

    python -P alone_graph.py FILE.onnx|FILE.pt2 INPUTS.safetensors OUTPUT.safetensors

INPUTS holds input_ids int64 [B, N] and, for a graph that takes it, attention_mask int64 [B, N]; row after row goes
through the graph. OUTPUT holds `logits` float32 [B, N, V].
"""

import json
import sys
from collections.abc import Callable

import torch
from safetensors.torch import load_file, save_file

Graph = Callable[[dict[str, torch.Tensor]], torch.Tensor]


def main(graph: str, inputs: str, output: str) -> None:
    run = _onnx(graph) if graph.endswith(".onnx") else _torch(graph)
    given = load_file(inputs)
    rows = [run({name: x[row : row + 1] for name, x in given.items()}) for row in range(len(given["input_ids"]))]
    imported = [name for name in sys.modules if name.partition(".")[0] == "asterism"]
    save_file({"logits": torch.cat(rows).contiguous()}, output, metadata={"imported": json.dumps(imported)})


def _onnx(path: str) -> Graph:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda given: torch.tensor(session.run(None, {name: x.numpy() for name, x in given.items()})[0])


def _torch(path: str) -> Graph:
    module = torch.export.load(path).module()
    return lambda given: module(**given).detach()


if __name__ == "__main__":
    main(*sys.argv[1:])
