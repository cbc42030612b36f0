"""asterism export: write a model for programs without Asterism, as a stock model of transformers or as a graph.

MODEL is the folder of a run, of a model with a saved pattern, or of a dense checkpoint, with --pattern. With --native,
windows become fields of the configuration of Mistral, Ministral, Qwen, Gemma 3, ModernBERT and others, and the weights
stay. With --onnx or --torch, the model becomes a graph for one length, with patterns as masks. What is written gets its
name only after it has computed the logits of the model in a process without Asterism.

With --merge, the adapter of a run is added to the weights of its base, and the model keeps its pattern.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from asterism.cli.errors import UsageError
from asterism.cli.output import output_file
from asterism.cli.parser import Parser, print_json, whole_number
from asterism.cli.waiting import waiting
from asterism.presence import require_model, require_run

if TYPE_CHECKING:
    from asterism.models import Exported, ExportedGraph


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    graph = _check(arguments)
    require_model(Path(arguments.model), "MODEL")
    if arguments.merge:
        _merge(arguments)
        return
    with waiting("loading PyTorch and transformers"):
        from asterism.models import export_graph, export_native
        from asterism.quiet import quiet_transformers
        from asterism.training.run.folder import model_folder
    exported: Exported | ExportedGraph
    with quiet_transformers(), waiting("converting and comparing"):
        folder = model_folder(arguments.model, "MODEL")
        if graph is None:
            exported = export_native(folder, arguments.output, pattern=arguments.pattern, to=arguments.to)
        else:
            exported = export_graph(folder, graph, length=arguments.length, pattern=arguments.pattern)
    if arguments.json:
        print_json(asdict(exported))
    else:
        print(_describe(exported) if graph is None else _describe_graph(exported))


def _merge(arguments: Namespace) -> None:
    require_run(Path(arguments.model))
    with waiting("loading PyTorch and transformers"):
        from asterism.training.ask.merging import merge
    with waiting("merging"):
        merged = merge(arguments.model, arguments.output)
    if arguments.json:
        print_json(asdict(merged))
    else:
        print(merged)


def _check(arguments: Namespace) -> Path | None:
    """The file of the graph to write, None for a stock model. Raises UsageError for flags that do not fit."""
    forms = {name: getattr(arguments, name) for name in ("native", "onnx", "torch", "merge")}
    given = [name for name, value in forms.items() if value]
    if len(given) != 1:
        raise UsageError("export-needs-form", "export needs one of --native, --onnx FILE, --torch FILE and --merge")
    form = given[0]
    needed, others = {
        "native": ("output", ("length",)),
        "merge": ("output", ("length", "pattern", "to")),
    }.get(form, ("length", ("output", "to")))
    if getattr(arguments, needed) is None:
        raise UsageError("export-flag-missing", f"--{form} needs --{needed}")
    for name in others:
        if getattr(arguments, name) is not None:
            raise UsageError("export-flag-unused", f"--{name} has no meaning with --{form}; leave it out")
    return None if form in ("native", "merge") else forms[form]


def _describe_graph(exported: "ExportedGraph") -> str:
    masked = "attention_mask" in exported.inputs
    return "\n".join(
        [
            f"{exported.source}, {exported.parameters:,} parameters, float32",
            f"inputs     {', '.join(exported.inputs)}: int64 [1, {exported.length:,}]"
            + ("" if masked else "; no padding, since a pattern depends on the length of a row"),
            f"output     logits [1, {exported.length:,}, ...]; other lengths need another export",
            f"checked    without Asterism: logits differ by {exported.error:.1g} of the largest",
            f"saved in {exported.file}",
        ]
    )


def _describe(exported: "Exported") -> str:
    checked = exported.checked
    windows = {name: value for name, value in exported.windows.items() if name != "layer_types"}
    lines = [
        f"{exported.source} -> {exported.model}, {exported.parameters:,} parameters",
        *(f"layers     {layers}  {text}" for text, layers in _runs(exported.patterns)),
        f"windows    {', '.join(f'{name} {value}' for name, value in windows.items())}"
        + (", layer_types" if "layer_types" in exported.windows else ", in every layer"),
        f"tokenizer  {', '.join(exported.tokenizer) or 'none in the model'}",
        *(
            f"checked    {attention} attention of transformers, {checked.tokens:,} tokens:"
            f" logits differ by {error:.1g} of the largest"
            for attention, error in checked.errors.items()
        ),
        f"saved in {exported.folder}",
    ]
    return "\n".join(lines)


def _runs(patterns: Sequence[str]) -> list[tuple[str, str]]:
    """Each pattern of consecutive layers, with their numbers."""
    found = []
    for text, members in groupby(enumerate(patterns), lambda pair: pair[1]):
        numbers = [number for number, _ in members]
        last = f" to {numbers[-1]}" if len(numbers) > 1 else ""
        found.append((text, f"{numbers[0]}{last}"))
    width = max(len(layers) for _, layers in found)
    return [(text, f"{layers:<{width}}") for text, layers in found]


def _parser() -> Parser:
    parser = Parser(
        "export",
        __doc__ or "",
        'asterism export llama-3.2-1b --native --pattern "window(left=511)" --output mistral-like',
    )
    parser.add_argument("model", metavar="MODEL", help="the folder of a model or of a run")
    parser.add_argument(
        "--native", action="store_true", help="write windows as fields of a stock configuration of transformers"
    )
    parser.add_argument(
        "--merge", action="store_true", help="add the adapter of a run (finetune --lora) to the weights of its base"
    )
    parser.add_argument("--output", metavar="FOLDER", help="with --native or --merge: new folder for the model")
    parser.add_argument(
        "--onnx",
        metavar="FILE",
        type=output_file(".onnx"),
        help="write a graph of ONNX (extra `export`); replaces FILE",
    )
    parser.add_argument(
        "--torch", metavar="FILE", type=output_file(".pt2"), help="write a graph of torch.export; replaces FILE"
    )
    parser.add_argument(
        "--length",
        metavar="N",
        type=whole_number(1),
        help="with --onnx or --torch: tokens of a row, fixed in the graph",
    )
    parser.add_argument(
        "--pattern",
        metavar="TEXT",
        help='a pattern or schedule for a checkpoint of transformers, such as "interleave(window(left=1023),'
        ' causal())", in place of its own windows (default: the pattern saved with it, else its own windows)',
    )
    parser.add_argument(
        "--to",
        metavar="FAMILY",
        help="with --native: model_type to write, such as mistral, ministral or cwm (default: the first that fits)",
    )
    return parser
