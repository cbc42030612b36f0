"""asterism export: write a model with windows as a model of transformers' own classes, for engines without Asterism.

MODEL is the folder of a run, of a model with a saved pattern, or of a dense checkpoint, with --pattern. The windows of
its layers become fields of the configuration of Mistral, Ministral, Qwen, Gemma 3, ModernBERT and others; the weights
stay. Before the folder gets its name, transformers loads it without Asterism and must compute the same logits.
"""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from asterism.cli.errors import UsageError
from asterism.cli.parser import Parser, print_json
from asterism.cli.waiting import waiting
from asterism.presence import require_model

if TYPE_CHECKING:
    from asterism.models import Exported


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    if not arguments.native:
        raise UsageError("export-needs-form", "export needs --native: windows as fields of a stock configuration")
    require_model(Path(arguments.model), "MODEL")
    with waiting("loading PyTorch and transformers"):
        from asterism.models import export_native
        from asterism.quiet import quiet_transformers
        from asterism.training.run.folder import model_folder
    with quiet_transformers(), waiting("converting and comparing"):
        folder = model_folder(arguments.model, "MODEL")
        exported = export_native(folder, arguments.output, pattern=arguments.pattern, to=arguments.to)
    if arguments.json:
        print_json(asdict(exported))
    else:
        print(_describe(exported))


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
        'asterism export llama-3.2-1b --native --pattern "window(left=4095)" --output mistral-like',
    )
    parser.add_argument("model", metavar="MODEL", help="the folder of a model or of a run")
    parser.add_argument(
        "--native", action="store_true", help="write windows as fields of a stock configuration of transformers"
    )
    parser.add_argument("--output", metavar="FOLDER", required=True, help="new folder for the model")
    parser.add_argument(
        "--pattern",
        metavar="TEXT",
        help='a pattern or schedule of windows for a checkpoint of transformers, such as "interleave(window(left=1023),'
        ' causal())", in place of its own windows (default: the pattern saved with it, else its own windows)',
    )
    parser.add_argument(
        "--to",
        metavar="FAMILY",
        help="model_type to write, such as mistral, ministral, cwm or smollm3 (default: the first that fits)",
    )
    return parser
