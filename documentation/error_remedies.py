"""What to do about errors whose message does not say it, by code; the page of error codes prints it.

A remedy must be right for every message with its code.
"""

_CORRECT = "Correct or remove the entry that the message names."
_AGAIN = "Download or write the file again."
_CALL = "The names and arguments: [patterns](patterns.md), [readers](../explanation/readers.md), [verbs](verbs.md)."
_COLUMNS = "[Tasks](../howto/finetuning.md#tasks) lists the fields of every task."
_ELSEWHERE = 'Use `implementation="auto"`, which chooses an implementation that can compute the call.'
_FAMILIES = "[Families of transformers](zoo.md) lists the models that take a pattern."
_HELP = "`asterism VERB --help` lists the arguments."
_IMPORTED = "[Import](../howto/import.md) lists what can be imported."
_OTHERS = "The cause is in the process that the message names. Remove it, and start all processes again."
_PATH = "Check the path. Relative paths start at the folder in which you run the command."
_SAME = "Start all processes with the same command, data and versions."
_SETTINGS = "[Settings](settings.md) lists every setting and its values."
_WHOLE = "The files are from different models, or a copy is incomplete: copy the whole folder again."

REMEDIES: dict[str, str] = {
    "attends-twice": _FAMILIES,
    "attention-in-some-layers": _FAMILIES,
    "bad-array": _CORRECT,
    "bad-entry": _CORRECT,
    "bad-example": _CORRECT,
    "bad-field": _CORRECT,
    "bad-interval": _CORRECT,
    "bad-letter": _CORRECT,
    "bad-picture": _CORRECT,
    "bad-recording": _CORRECT,
    "bias-not-by-distance": _FAMILIES,
    "cache-shapes": "Start each batch with a new cache.",
    "checkpointing-with-cache": "Set `use_cache=False`, or switch gradient checkpointing off.",
    "complex-weights": "Save the weights as real numbers.",
    "compression-ratio": "If you trust the file, unpack it yourself.",
    "damaged-archive": _AGAIN,
    "damaged-array": _AGAIN,
    "damaged-compression": _AGAIN,
    "damaged-file": "Restore the file from a copy, or write it again.",
    "data-changed": "Restore the files of the first step, or begin a new run.",
    "dropout-with-cache": "Call `model.eval()`, or set `attention_dropout` to 0.",
    "field-refused": "The message names the field. " + _SETTINGS,
    "fields-per-row": _CORRECT,
    "functional-in-compile": "Call it outside of `torch.compile`.",
    "incomplete-download": _AGAIN,
    "kernel-failed": _ELSEWHERE,
    "kernel-refused": _ELSEWHERE,
    "mask-inside-attention": _FAMILIES,
    "missing-columns": _COLUMNS,
    "missing-data": _PATH,
    "missing-field": _COLUMNS,
    "missing-file": _PATH,
    "missing-folder": _PATH,
    "not-a-run-folder": "Give the folder of a run, which `--folder` named when it began.",
    "other-mixers": _FAMILIES,
    "other-process-refused": _OTHERS,
    "other-rank-refused": _OTHERS,
    "own-mask": _FAMILIES,
    "processes-differ": _SAME,
    "rank-lost": "Read the output of the process that ended: it names the cause.",
    "ranks-asked-differently": "Make the same calls in the same order on all ranks, with the same arguments.",
    "refused-by-implementation": _ELSEWHERE,
    "setting-range": _SETTINGS,
    "size-beyond-weights": _WHOLE,
    "tensor-missing": _WHOLE,
    "tensor-shape": _WHOLE,
    "tensor-unknown": _WHOLE,
    "tensors-differ": _WHOLE,
    "unknown-argument": _CALL,
    "unknown-attention-argument": _FAMILIES,
    "unknown-name": _CALL,
    "unknown-pattern": "[Patterns](patterns.md) lists all names.",
    "unreadable-setting": _SETTINGS,
    "unsupported-checkpoint-value": _IMPORTED,
    "unsupported-class": _IMPORTED,
    "unsupported-field": _FAMILIES,
    "unsupported-model-type": _IMPORTED,
    "usage": _HELP,
}
