"""asterism import: convert a Hugging Face checkpoint to an Asterism model, longer and sparser on request.

PATH is a folder with config.json and safetensors of BERT, RoBERTa, CamemBERT, XLM-RoBERTa, Longformer, BigBird or FNet,
or of an encoder-decoder: BART, Pegasus, BigBird-Pegasus, T5 or LED. After `import asterism.models` the output loads
with AutoModel, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, ..., and with AutoTokenizer.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from asterism.cli.parser import Parser, print_json, whole_number
from asterism.cli.waiting import waiting
from asterism.presence import require_checkpoint

if TYPE_CHECKING:
    from asterism.models import ImportedCheckpoint


def run(argv: Sequence[str]) -> None:
    options, as_json = _parser().options(argv)
    require_checkpoint(Path(options["path"]))
    with waiting("loading PyTorch and transformers"):
        from asterism.models import import_checkpoint
        from asterism.quiet import quiet_transformers

    with quiet_transformers(), waiting("converting"):
        imported = import_checkpoint(**options)
    if as_json:
        print_json(asdict(imported))
    else:
        print(_describe(imported))


def _describe(imported: "ImportedCheckpoint") -> str:
    before, after = imported.positions
    made_of = "repeating the checkpoint's" if imported.has_table else "instead of the checkpoint's"
    mixers = dict.fromkeys([imported.mixers] if isinstance(imported.mixers, str) else imported.mixers)
    lines = [
        f"{imported.source} -> {imported.model}, {imported.parameters:,} parameters",
        f"positions  {after:,}" + (f", {made_of} {before:,}" if after > before else ""),
        *(f"pattern    {mixer}" for mixer in mixers),
        f"tokenizer  {', '.join(imported.tokenizer) or 'none in the checkpoint'}",
        *(f"note       {note}" for note in imported.notes),
        *([f"left out   {', '.join(imported.left_out)}"] if imported.left_out else []),
        f"saved in {imported.folder}",
    ]
    return "\n".join(lines)


def _parser() -> Parser:
    parser = Parser(
        "import", __doc__ or "", 'asterism import bert-base --output long-bert --length 4096 --pattern "bigbird()"'
    )
    parser.add_argument("path", metavar="PATH", help="the folder of the checkpoint")
    parser.add_argument("--output", metavar="FOLDER", required=True, help="new folder for the model")
    parser.add_argument(
        "--length",
        type=whole_number(1),
        metavar="N",
        help="extend the model to sequences (of the source) of N tokens by repeating its learned positions",
    )
    parser.add_argument("--pattern", metavar="TEXT", help="pattern in place of the checkpoint's")
    parser.add_argument(
        "--globals",
        type=whole_number(0),
        nargs="*",
        metavar="POSITION",
        help="positions of global tokens of Longformer and LED (default: 0; with --pattern, or without a number: none)",
    )
    parser.add_argument(
        "--allow-pickle",
        action="store_true",
        help="read pytorch_model.bin, tensors only, if there are no safetensors",
    )
    return parser
